package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/daemon"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/server"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/suggest"
)

// backup writes a snapshot of etcd to a file, all of it or nothing.
func (r *runner) backup(ctx context.Context) (any, error) {
	s, c, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if there, err := exists(r.File); err != nil || there && !r.Force {
		if err == nil {
			err = wire.Errorf(api.CodeRefused, suggest.Command("volctl cluster backup %s --force", r.File), "the file exists")
		}
		return nil, fmt.Errorf("cannot write %q: %w", r.File, err)
	}

	f, err := os.CreateTemp(filepath.Dir(r.File), "."+filepath.Base(r.File)+".") // created with mode 0600
	if err != nil {
		return nil, fmt.Errorf("cannot write the backup: %w", err)
	}
	size, version, err := c.Snapshot(ctx, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = server.Check(f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), r.File)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write the backup: %w", err), os.Remove(f.Name()))
	}
	if err := hostdir.SyncDir(filepath.Dir(r.File)); err != nil {
		return nil, err
	}
	return wire.Done{ClusterID: s.ClusterID, File: r.File, Bytes: size, Version: version, Lines: []string{
		"the backup has the definitions and holds of shared volumes; the certificates of the cluster are not in it",
	}}, nil
}

// restore makes this host the only member of a cluster with the data of a backup. It stops etcd only
// after it has made the new data from the backup, so a backup that is refused changes nothing.
func (r *runner) restore(ctx context.Context) (answer any, err error) {
	s, err := r.dir.Load()
	if err != nil {
		return nil, err
	}
	if !s.RunsEtcd() {
		return nil, wire.Errorf(api.CodeRefused, "restore the backup on a member: volctl cluster status", "this host is a client, and runs no etcd")
	}
	s.Boot, s.EtcdCluster = daemon.Random(), ""
	s.Members = []hostdir.Peer{{Name: s.Name, Client: s.ClientURL(), Peer: s.PeerURL(), Voter: true}}
	fresh, meta, err := r.prepareRestore(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fresh.Discard()) }() // after a success, nothing remains to remove

	unlock, err := r.stop(ctx, false)
	if err != nil {
		return nil, err
	}
	defer unlock()
	aside, err := fresh.Install(r.now())
	if err != nil {
		return nil, err
	}
	if err := r.dir.Save(s); err != nil {
		return nil, err
	}
	unlock()

	done := wire.Done{ClusterID: s.ClusterID, File: aside, Epoch: meta.Epoch}
	if done.Started, err = r.start(ctx); err != nil {
		return nil, err
	}
	done.Lines = append([]string{
		fmt.Sprintf("restored cluster %s in epoch %d; %s is its only member", s.ClusterID, meta.Epoch, s.Name),
		"the old data of etcd is in " + aside,
	}, startLines(done.Started)...)
	done.Lines = append(done.Lines,
		"on every other member: volctl cluster leave --forget, then volctl cluster join",
		"when every host has registered: volctl cluster resume")
	return done, nil
}

// prepareRestore makes the new data from the backup. It refuses a backup that is damaged, or of another
// cluster.
func (r *runner) prepareRestore(ctx context.Context, s hostdir.State) (fresh *server.Restored, meta shared.Meta, err error) {
	key := s.Prefix + "/v1/" + shared.MetaKey
	fresh, err = server.Prepare(ctx, r.dir, s, r.File, key, func(old []byte) ([]byte, error) {
		if len(old) == 0 {
			return nil, wire.Errorf(api.CodeRefused, "use a backup of this cluster", "the backup has no cluster under the prefix %s, so it is not of cluster %s", s.Prefix, s.ClusterID)
		}
		e, err := member.DecodeMeta(member.KV{Key: shared.MetaKey, Value: old, Mod: int64(len(old))})
		if err != nil {
			return nil, err
		}
		if meta, err = marked(e, s.ClusterID, r.now()); err != nil {
			return nil, err
		}
		return e.Encode(meta), nil
	})
	return fresh, meta, err
}

// marked returns the description of a cluster after a restore: with a new epoch, and suspended.
func marked(e shared.Entry[shared.Meta], cluster string, now time.Time) (shared.Meta, error) {
	m := e.Value
	if cluster != "" && m.ClusterID != "" && m.ClusterID != cluster {
		return m, wire.Errorf(api.CodeRefused, "use a backup of this cluster", "the backup is of cluster %s, and this host belongs to cluster %s", m.ClusterID, cluster)
	}
	if m.ClusterID == "" {
		m.ClusterID = cluster
	}
	m.Schema = max(m.Schema, 1)
	m.Epoch, m.EpochTail = max(m.Epoch+1, now.Unix()), daemon.Random()
	m.Suspended, m.WentBack = "restored at "+now.UTC().Format(time.RFC3339), ""
	return m, nil
}

// restored marks a cluster whose etcd the user restored.
func (r *runner) restored(ctx context.Context) (any, error) {
	return r.changeMeta(ctx, func(_ *member.Client, _ string, e shared.Entry[shared.Meta]) (shared.Meta, []string, error) {
		m, err := marked(e, "", r.now())
		return m, []string{
			fmt.Sprintf("cluster %s is in epoch %d now, and single-writer volumes are suspended", m.ClusterID, m.Epoch),
			"when every host has registered: volctl cluster resume",
		}, err
	})
}

// resume permits single-writer volumes again, after a restore.
func (r *runner) resume(ctx context.Context) (any, error) {
	return r.changeMeta(ctx, func(c *member.Client, prefix string, e shared.Entry[shared.Meta]) (shared.Meta, []string, error) {
		m := e.Value
		switch {
		case m.WentBack != "":
			return m, nil, wire.Errorf(api.CodeRefused, "volctl cluster restored", "etcd has gone back to an older state: %s", m.Suspended)
		case m.Suspended == "":
			return m, nil, wire.Errorf(api.CodeRefused, "volctl cluster status", "the cluster is not suspended")
		}
		nodes, err := member.Nodes(ctx, c, prefix)
		if err != nil {
			return m, nil, err
		}
		if missing := shared.Missing(m, nodes); len(missing) > 0 {
			return m, nil, wire.Errorf(api.CodeRefused, "start the agents of these hosts, and look for errors in their logs; if the machine of a host is gone: volctl node replace HOST --reason TEXT -y",
				"these hosts have not written all their holds since the restore: %s; they may still use volumes", strings.Join(missing, ", "))
		}

		lines := []string{fmt.Sprintf("cluster %s admits single-writer volumes again; it was suspended: %s", m.ClusterID, m.Suspended)}
		m.Suspended = ""
		return m, lines, nil
	})
}

// metaChange returns a new description of the cluster, and what to tell the user.
type metaChange func(c *member.Client, prefix string, e shared.Entry[shared.Meta]) (shared.Meta, []string, error)

// changeMeta changes the description of the cluster by compare-and-set. It also works on a host that
// uses an etcd that volagent-etcd does not run.
func (r *runner) changeMeta(ctx context.Context, change metaChange) (any, error) {
	c, prefix, err := r.agentClient()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	e, err := c.Meta(ctx, prefix)
	if err != nil {
		return nil, err
	}
	if !e.Exists() {
		return nil, wire.Errorf(api.CodeNotFound, "check endpoints and prefix in the cluster section of the configuration", "etcd has no cluster under the prefix %s", prefix)
	}
	m, lines, err := change(c, prefix, e)
	if err != nil {
		return nil, err
	}
	if err := c.SetMeta(ctx, e, m); err != nil {
		return nil, err
	}
	return wire.Done{ClusterID: m.ClusterID, Epoch: m.Epoch, Schema: m.Schema, Lines: lines}, nil
}

// agentSection is the part of the agent's section "cluster" that says how to reach etcd.
type agentSection struct {
	Endpoints []string `yaml:"endpoints"`
	CA        string   `yaml:"ca"`
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`
	User      string   `yaml:"user"`
	Password  struct {
		File string `yaml:"file"`
		Env  string `yaml:"env"`
	} `yaml:"password"`
	Prefix string `yaml:"prefix"`
}

// agentClient returns a client for the etcd of this host's agent, and the prefix of its keys.
func (r *runner) agentClient() (*member.Client, string, error) {
	if s, err := r.dir.Load(); err == nil {
		c, err := member.Connect(r.dir, s)
		return c, s.Prefix, err
	}

	section, err := readSection(r.dir)
	if err != nil {
		return nil, "", err
	}
	config, err := member.TLS(section.CA, section.Cert, section.Key)
	if err != nil {
		return nil, "", err
	}
	c := member.New(section.Endpoints, config)
	c.User, c.Password = section.User, os.Getenv(section.Password.Env)
	if section.Password.File != "" {
		raw, err := hostdir.ReadFile(section.Password.File)
		if err != nil {
			return nil, "", err
		}
		c.Password = strings.TrimSuffix(string(raw), "\n")
	}
	if section.Prefix == "" {
		section.Prefix = "/volagent"
	}
	return c, strings.TrimSuffix(section.Prefix, "/"), nil
}

// readSection reads the agent's section "cluster" from its own file or from the agent's configuration.
func readSection(dir hostdir.Dir) (agentSection, error) {
	var own agentSection
	var file struct {
		Cluster agentSection `yaml:"cluster"`
	}
	raw, err := os.ReadFile(dir.ClusterFile())
	if err == nil {
		err = yaml.Unmarshal(raw, &own)
	} else if raw, err = os.ReadFile(filepath.Join(dir.Config, "volagent.yaml")); err == nil {
		err = yaml.Unmarshal(raw, &file)
		own = file.Cluster
	}
	if err == nil && len(own.Endpoints) == 0 {
		err = errors.New("it has no cluster section")
	}
	if err != nil {
		return own, wire.Errorf(api.CodeNotFound, "volctl cluster init, or volctl cluster join", "this host is in no cluster: %v", err)
	}
	return own, nil
}

// compact frees space in etcd: it forgets old revisions, gives free space back, and clears the quota
// alarm. With a quota, it also stores the quota of this host's etcd.
func (r *runner) compact(ctx context.Context) (any, error) {
	s, c, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()

	var lines []string
	if r.Quota > 0 {
		s.Quota = r.Quota
		if err := r.dir.Save(s); err != nil {
			return nil, err
		}
		lines = append(lines, "the etcd of this host has the new quota after: systemctl restart volagent-etcd; set the same quota on every member")
	}
	revision, err := c.Compact(ctx)
	if err != nil {
		return nil, err
	}

	members, _, _, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if m.Client == "" {
			continue
		}
		if err := c.Defragment(ctx, m.Client); err != nil { // one after the other, because a member answers nothing else meanwhile
			lines = append(lines, err.Error())
		}
	}
	if err := c.Disarm(ctx); err != nil {
		return nil, err
	}
	lines = append(lines, fmt.Sprintf("compacted etcd to revision %d, and cleared the quota alarm", revision))
	for _, state := range c.StatusOf(ctx, member.ClientURLs(members)) {
		if state.Err == nil && state.Quota > 0 && state.InUse*100 > state.Quota*nearlyFull {
			lines = append(lines, "etcd still uses most of its quota; raise it: volctl cluster compact --quota SIZE")
			break
		}
	}
	return wire.Done{ClusterID: s.ClusterID, Lines: lines}, nil
}
