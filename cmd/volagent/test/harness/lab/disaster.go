package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// SaveEtcd copies the data of all members, which must not run, to new directories. RestoreEtcd takes
// the result.
func (l *Lab) SaveEtcd() (saved string) {
	l.T.Helper()
	saved = l.T.TempDir()
	for _, m := range l.Etcd {
		m.Host.Must(os.CopyFS(filepath.Join(saved, m.Host.Name), os.DirFS(m.dataDir())))
	}
	return saved
}

// RestoreEtcd replaces the data of all members, which must not run, by the data that SaveEtcd has
// copied. This is how an operator goes back to a backup.
func (l *Lab) RestoreEtcd(saved string) {
	l.T.Helper()
	for _, m := range l.Etcd {
		m.Host.Must(os.RemoveAll(m.dataDir()))
		m.Host.Must(os.CopyFS(m.dataDir(), os.DirFS(filepath.Join(saved, m.Host.Name))))
		m.Host.Must(os.Chmod(m.dataDir(), 0o700)) // etcd requires it
	}
}

// Replace removes a member from the cluster, with its data, and adds a new member at its place. The
// other members must serve requests.
func (l *Lab) Replace(m *Member) {
	l.T.Helper()
	other := l.Etcd[0]
	if other == m {
		other = l.Etcd[1]
	}
	// An answer may be lost, and the cluster accepts no change for a few seconds after a member has lost another
	// one. So each attempt begins with a list of the members.
	url := m.url("http", peerPort)
	m.Host.Await("etcd to remove the member", func() bool {
		id, err := l.memberAt(other, url)
		if err != nil {
			return false
		}
		return id == "" || l.call(other, "remove", map[string]any{"ID": id}, nil) == nil
	})
	if m.Runs() {
		m.Kill()
	}
	m.Host.Must(os.RemoveAll(m.dataDir()))

	m.Host.Await("etcd to accept the new member", func() bool {
		id, err := l.memberAt(other, url)
		if err != nil {
			return false
		}
		return id != "" || l.call(other, "add", map[string]any{"peerURLs": []string{url}}, nil) == nil
	})
	m.joins = true
	m.Start()
}

// memberAt returns the id of the member with the given peer URL, or "" if the cluster has none. It asks another
// member.
func (l *Lab) memberAt(other *Member, url string) (id string, err error) {
	var list struct {
		Members []struct {
			ID       string   `json:"ID"`
			PeerURLs []string `json:"peerURLs"`
		} `json:"members"`
	}
	if err := l.call(other, "list", map[string]any{"linearizable": true}, &list); err != nil {
		return "", err
	}
	for _, one := range list.Members {
		if slices.Equal(one.PeerURLs, []string{url}) {
			return one.ID, nil
		}
	}
	return "", nil
}

// call sends a request about the members to etcd's JSON gateway, and decodes the answer.
func (l *Lab) call(m *Member, verb string, request, answer any) error {
	cert, err := tls.LoadX509KeyPair(l.Files.Cert, l.Files.Key)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(l.Files.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: m.Host.Dial, TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots},
	}}
	resp, err := client.Post(m.url("https", clientPort)+"/v3/cluster/member/"+verb, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s to %s: %s", resp.Status, verb, raw)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(raw, answer)
}

// SlowDisk makes each synchronisation of the member's data take longer, until the test calls the
// returned function.
func (m *Member) SlowDisk(by time.Duration) (end func()) {
	m.Host.T.Helper()
	return harness.Inject(m.Host.Host, m.process.Pid, "fdatasync", fmt.Sprintf("delay_exit=%d", by.Microseconds()))
}

// FailDisk makes the synchronisation of the member's data fail, until the test calls the returned
// function. The member then ends.
func (m *Member) FailDisk() (end func()) {
	m.Host.T.Helper()
	return harness.Inject(m.Host.Host, m.process.Pid, "fdatasync", "error=EIO")
}

// SetFailpoint sets a failpoint of etcd to the given terms of gofail, such as "panic" or "sleep(100)". It
// needs WithFailpoints. The setting ends with the process of the member.
func (m *Member) SetFailpoint(name, terms string) error {
	return m.failpoint(http.MethodPut, name, terms)
}

// ClearFailpoint ends SetFailpoint.
func (m *Member) ClearFailpoint(name string) error { return m.failpoint(http.MethodDelete, name, "") }

func (m *Member) failpoint(method, name, terms string) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: m.Host.Dial}}
	req, err := http.NewRequestWithContext(context.Background(), method, m.url("http", failPort)+"/"+name, strings.NewReader(terms))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("etcd on %s answers %s to %s of the failpoint %s", m.Host.Name, resp.Status, method, name)
	}
	return nil
}

// dataDir returns the directory with the member's data.
func (m *Member) dataDir() string { return filepath.Join(m.Host.Dir, "etcd") }
