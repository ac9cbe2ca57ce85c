// Package server runs etcd inside volagent-etcd. It is the only package that imports etcd's server.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// Version is the version of etcd in this program.
var Version = version.Version

const (
	// DefaultQuota limits the data of etcd. The keys of a cluster with 1 000 hosts and 100 000
	// volumes need much less.
	DefaultQuota = 4 << 30

	// compaction is the age at which etcd forgets old revisions.
	compaction = time.Hour

	// keepAlive is the interval at which etcd checks idle connections of clients. A client that is
	// gone is noticed after this time and keepAliveTimeout.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 5 * time.Second

	// keepAliveMin is the shortest interval at which clients may check their connections.
	keepAliveMin = time.Second
)

// Server is a running etcd.
type Server struct{ etcd *embed.Etcd }

// Initialised reports whether etcd has run in the directory of a host. It then knows its cluster.
func Initialised(d hostdir.Dir) bool {
	entries, err := os.ReadDir(filepath.Join(d.Path(hostdir.EtcdDir), "member", "wal"))
	return err == nil && len(entries) > 0
}

// Start starts etcd. It returns when etcd listens. Ready then tells when etcd has found a leader.
func Start(d hostdir.Dir, s hostdir.State) (*Server, error) {
	cfg := config(d, s)
	if err := setURLs(cfg, s); err != nil {
		return nil, err
	}

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, explain(err, d, s)
	}
	return &Server{e}, nil
}

// config returns the configuration of etcd without its addresses.
func config(d hostdir.Dir, s hostdir.State) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = s.Name, d.Path(hostdir.EtcdDir)
	cfg.LogLevel, cfg.LogFormat, cfg.LogOutputs = "warn", "console", []string{embed.StdErrLogOutput}
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, compaction.String()
	cfg.QuotaBackendBytes = DefaultQuota
	if s.Quota > 0 {
		cfg.QuotaBackendBytes = s.Quota
	}
	cfg.MaxLearners = quorum.MaxLearners
	cfg.StrictReconfigCheck = true
	cfg.GRPCKeepAliveMinTime, cfg.GRPCKeepAliveInterval, cfg.GRPCKeepAliveTimeout = keepAliveMin, keepAlive, keepAliveTimeout

	// etcd reads the certificate again for each connection, so that a renewal needs no restart. A
	// peer's certificate need not name the address from which the peer connects: a host may have
	// several addresses.
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: d.Path(hostdir.HostCert), KeyFile: d.Path(hostdir.HostKey),
		TrustedCAFile: d.Path(hostdir.CACert), ClientCertAuth: true,
	}
	cfg.PeerTLSInfo = cfg.ClientTLSInfo
	cfg.PeerTLSInfo.SkipClientSANVerify = true

	cfg.ClusterState = embed.ClusterStateFlagExisting
	if s.Boot != "" {
		cfg.ClusterState, cfg.InitialClusterToken = embed.ClusterStateFlagNew, s.Boot
	}
	var peers []string
	for _, m := range s.Members {
		peers = append(peers, m.Name+"="+m.Peer)
	}
	cfg.InitialCluster = strings.Join(peers, ",")
	return cfg
}

// setURLs sets the addresses on which etcd listens, and those that it tells others.
func setURLs(cfg *embed.Config, s hostdir.State) error {
	advertised, err := parse(s.ClientURL(), s.PeerURL())
	if err != nil {
		return err
	}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = advertised[:1], advertised[1:]

	at := ListenHost(s)
	client, peer := at+":"+strconv.Itoa(s.ClientPort), at+":"+strconv.Itoa(s.PeerPort)
	listened, err := parse("https://"+client, "https://"+peer)
	if err != nil {
		return err
	}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = listened[:1], listened[1:]
	return nil
}

// ListenHost returns the address on which a host listens, in the form for a URL.
func ListenHost(s hostdir.State) string {
	at := s.Listen
	if at == "" {
		at = "0.0.0.0"
		if net.ParseIP(s.Address) != nil {
			at = s.Address
		}
	}
	if strings.Contains(at, ":") {
		return "[" + at + "]"
	}
	return at
}

func parse(texts ...string) ([]url.URL, error) {
	var urls []url.URL
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("cannot read the address of this host: %w", err)
		}
		urls = append(urls, *u)
	}
	return urls, nil
}

// ErrMembers means that etcd cannot enter the cluster. The members that it was told have not answered,
// or they are not exactly those of the cluster.
var ErrMembers = errors.New("the cluster does not expect this member")

// explain turns an error of etcd's start into words.
func explain(err error, d hostdir.Dir, s hostdir.State) error {
	text := err.Error()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return wire.Errorf(api.CodeRefused, "stop the program that uses the port: ss -lntp",
			"a port of etcd (%d, %d) is in use by another program: %v", s.ClientPort, s.PeerPort, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return wire.Errorf(api.CodeInvalid, "name an address of this host with --listen", "this host does not have the address %s", ListenHost(s))
	case strings.Contains(text, "member count is unequal"), strings.Contains(text, "unmatched member"),
		strings.Contains(text, "cluster ID mismatch"), strings.Contains(text, "cannot fetch cluster info"):
		return fmt.Errorf("%w: %w", ErrMembers, err)
	case strings.Contains(text, "cannot be downgraded"), strings.Contains(text, "storage version"):
		return wire.Errorf(api.CodeRefused, "install a newer release of volagent", "etcd %s is too old for the data in %s: %v", Version, d.Path(hostdir.EtcdDir), err)
	default:
		return fmt.Errorf("cannot start etcd: %w", err)
	}
}

// Ready returns a channel that is closed when etcd has joined its cluster.
func (s *Server) Ready() <-chan struct{} { return s.etcd.Server.ReadyNotify() }

// Stopped returns a channel that is closed when etcd has stopped by itself, for example because
// another member has removed it.
func (s *Server) Stopped() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Failed returns a channel with errors of etcd's listeners.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Leads reports whether this member is the leader.
func (s *Server) Leads() bool {
	id := s.etcd.Server.MemberID()
	return id != 0 && s.etcd.Server.Leader() == id
}

// ClusterID returns the id of etcd's cluster, in hexadecimal digits.
func (s *Server) ClusterID() string {
	return strconv.FormatUint(uint64(s.etcd.Server.Cluster().ID()), 16)
}

// Removed reports whether the cluster has removed this member.
func (s *Server) Removed() bool {
	return s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID()) == nil
}

// Close stops etcd. If this member leads, another voter takes over first.
func (s *Server) Close() { s.etcd.Close() }

// waitReady waits until etcd has joined its cluster.
func (s *Server) waitReady(ctx context.Context) error {
	select {
	case <-s.Ready():
		return nil
	case <-s.Stopped():
		return errors.New("etcd has stopped")
	case <-ctx.Done():
		return fmt.Errorf("etcd is not ready: %w", ctx.Err())
	}
}
