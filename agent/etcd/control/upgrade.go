package control

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/quorum"
	"github.com/volagent/volagent/agent/etcd/server"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/shared"
)

// upgrade restarts this member with the installed version of etcd, if all members are healthy. When
// all members run the installed version, it raises the schema of the cluster as far as all agents
// support it.
func (r *runner) upgrade(ctx context.Context) (any, error) {
	s, c, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_, judged, err := c.Judged(ctx)
	if err != nil {
		return nil, err
	}

	done := wire.Done{ClusterID: s.ClusterID, Version: server.Version}
	if s.RunsEtcd() {
		if err := quorum.CheckUpgrade(judged, s.Name, server.Version); err != nil {
			return nil, err
		}
		if versionOf(judged, s.Name) != server.Version {
			if err := r.restart(ctx, c, s, &done); err != nil || r.DryRun {
				return done, err
			}
			if _, judged, err = c.Judged(ctx); err != nil {
				return nil, err
			}
		}
	}

	if old := older(judged); len(old) > 0 {
		done.Lines = append(done.Lines, "next, on each of these members, one after the other: volctl cluster upgrade ("+strings.Join(old, ", ")+")")
		return done, nil
	}
	done.Lines = append(done.Lines, "all members run etcd "+server.Version)
	if r.DryRun {
		return done, nil
	}

	schema, lacking, err := c.RaiseSchema(ctx, s.Prefix, shared.Schema)
	if err != nil {
		return nil, err
	}
	done.Schema = schema
	line := fmt.Sprintf("the cluster has schema %d", schema)
	if len(lacking) > 0 {
		line += fmt.Sprintf("; schema %d needs a newer release of volagent on: %s", shared.Schema, strings.Join(lacking, ", "))
	}
	done.Lines = append(done.Lines, line)
	return done, nil
}

// restart restarts volagent-etcd of this host, and waits until its member is healthy.
func (r *runner) restart(ctx context.Context, c *member.Client, s hostdir.State, done *wire.Done) error {
	if r.DryRun {
		done.Lines = append(done.Lines, "volagent-etcd of this host would be restarted with etcd "+server.Version)
		return nil
	}
	if !r.hasSystemd() {
		return wire.Errorf(api.CodeRefused, "stop volagent-etcd of this host, and start it again", "systemd does not run volagent-etcd")
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "restart", unit).CombinedOutput(); err != nil {
		return wire.Errorf(api.CodeFailed, "journalctl -u "+unit, "cannot restart volagent-etcd: %v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		_, judged, err := c.Judged(ctx)
		if err == nil && versionOf(judged, s.Name) == server.Version && quorum.CheckUpgrade(judged, s.Name, server.Version) == nil {
			done.Lines = append(done.Lines, fmt.Sprintf("member %s runs etcd %s now", s.Name, server.Version))
			return nil
		}
		if pause(ctx, time.Second) != nil {
			return wire.Errorf(api.CodeTimeout, "journalctl -u "+unit, "volagent-etcd was restarted, and its member is not healthy yet")
		}
	}
}

func versionOf(members []quorum.Member, name string) string {
	for _, m := range members {
		if m.Name == name {
			return m.Version
		}
	}
	return ""
}

// older lists the members that do not run the installed version of etcd.
func older(members []quorum.Member) (names []string) {
	for _, m := range members {
		if m.Version != server.Version {
			names = append(names, m.Name)
		}
	}
	return names
}
