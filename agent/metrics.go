package agent

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/volmgr/volume"
)

// newMetrics creates the counters of this agent. The functions in the options read fields of a that
// need not be set before the first scrape.
func (a *agent) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{
		Version: api.Version, Started: a.started,
		Plugins: a.pluginMetrics, Records: a.db.Volumes, Attempt: func(r volume.Record) *volume.Attempt { return a.queue.Last(r) },
		Reports: a.reportMetrics,
		Host:    a.hostMetrics,
	})
}

func (a *agent) hostMetrics() metrics.Host {
	n := a.db.Node()
	return metrics.Host{
		Commits: a.db.Commits(), Failures: a.db.Failures(), Fault: a.db.Fault(), Lost: n.Loss.At,
		Halted: a.halt != "", Draining: n.Draining, Leftovers: len(a.leftovers()),
	}
}

// newScraped returns the server of the metrics on a TCP address, or nil if no address is
// configured.
func (a *agent) newScraped() *metrics.Server {
	if a.c.MetricsAddress == "" {
		return nil
	}

	log := a.log.Named("metrics")
	tcp := listen.TCP{Dir: a.c.RuntimeDir, Args: []string{lendCommand}, Outside: a.plugins.Outside}
	return metrics.NewServer(metrics.ServerOptions{
		Address: a.c.MetricsAddress, Listen: tcp.Open, Write: a.metrics.Write,
		Listening: func(at net.Addr) {
			log.Info("metrics are there for everybody who reaches the address", "address", at.String())
		},
		Failed: func(err error) {
			log.Error("cannot serve the metrics; it is tried again every 5s", "address", a.c.MetricsAddress, "error", err)
		},
		Log: log,
	})
}

// unscraped reports a problem if the metrics cannot be served on the configured address.
func (a *agent) unscraped() (all []api.Problem) {
	if a.scraped == nil {
		return nil
	}

	if err := a.scraped.Fault(); err != nil {
		why, command := unheard(err, a.c.MetricsAddress)
		all = append(all, api.Problem{
			Subject: "agent", Message: fmt.Sprintf("cannot serve the metrics on %s: %v%s; it is tried again every 5s", a.c.MetricsAddress, err, why), Command: command,
		})
	}

	return all
}

// unheard explains why the agent cannot listen on an address, and names a command that shows the
// cause.
func unheard(err error, address string) (why, command string) {
	_, port, _ := net.SplitHostPort(address) // checkMetricsAddress has validated it
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (no interface of this host has it now)", "ip address"
	case errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EPERM):
		return " (the service may not use the network, and systemd did not open it)", "systemctl status volagent dbus"
	case errors.Is(err, syscall.EACCES):
		return " (the service may use ports from 1024 on)", "volagent check-config"
	default:
		return "", "ss -ltnp sport = :" + port
	}
}

func (a *agent) reportMetrics() (out []metrics.Report) {
	for _, r := range a.db.Volumes() {
		if last := a.volumes.LastReport(r); last.Stats != nil || last.Node != nil || last.Controller != nil {
			out = append(out, metrics.Report{Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Report: last})
		}
	}

	return out
}

func (a *agent) pluginMetrics() (out []metrics.Plugin) {
	for _, st := range a.plugins.Parts() {
		out = append(out, metrics.Plugin{ID: st.ID, Driver: st.Info.Driver, Type: st.Type, Instance: st.Instance, State: string(st.State), Restarts: st.Restarts})
	}
	return out
}
