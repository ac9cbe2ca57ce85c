package etcdtest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Compact compacts the history of the cluster up to a revision.
func (c *Cluster) Compact(revision int64) {
	c.t.Helper()
	c.Call("kv/compaction", map[string]any{"revision": fmt.Sprint(revision), "physical": true})
}

// Put sets a key.
func (c *Cluster) Put(key, value string) {
	c.t.Helper()
	c.Call("kv/put", map[string]any{"key": []byte(key), "value": []byte(value)})
}

// Get returns the value of a key, or "" if the key does not exist.
func (c *Cluster) Get(key string) string {
	c.t.Helper()
	var answer struct{ KVs []struct{ Value string } }
	if err := json.Unmarshal(c.Call("kv/range", map[string]any{"key": []byte(key)}), &answer); err != nil {
		c.t.Fatal(err)
	}
	if len(answer.KVs) == 0 {
		return ""
	}
	value, err := base64.StdEncoding.DecodeString(answer.KVs[0].Value)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(value)
}

// Count returns the number of all keys.
func (c *Cluster) Count() int {
	c.t.Helper()
	var answer struct {
		Count int `json:"count,string"`
	}
	everything := map[string]any{"key": []byte{0}, "range_end": []byte{0}, "count_only": true}
	if err := json.Unmarshal(c.Call("kv/range", everything), &answer); err != nil {
		c.t.Fatal(err)
	}
	return answer.Count
}

// TimeToLive returns the remaining seconds of a lease. It is negative after the end of the lease.
func (c *Cluster) TimeToLive(lease int64) int {
	c.t.Helper()
	var answer struct {
		TTL int `json:"TTL,string"`
	}
	if err := json.Unmarshal(c.Call("lease/timetolive", map[string]any{"ID": lease}), &answer); err != nil {
		c.t.Fatal(err)
	}
	return answer.TTL
}

// EnableAuth adds the user root, and a user who may read and write the keys that begin with a prefix,
// and makes the cluster check passwords. Later calls of Cluster's other methods are then refused.
func (c *Cluster) EnableAuth(user, password, prefix string) {
	c.t.Helper()
	c.Call("auth/user/add", map[string]any{"name": "root", "password": password})
	c.Call("auth/user/grant", map[string]any{"user": "root", "role": "root"})
	c.Call("auth/role/add", map[string]any{"name": "agents"})
	c.Call("auth/role/grant", map[string]any{"name": "agents", "perm": map[string]any{
		"permType": "READWRITE", "key": []byte(prefix), "range_end": []byte(prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)),
	}})
	c.Call("auth/user/add", map[string]any{"name": user, "password": password})
	c.Call("auth/user/grant", map[string]any{"user": user, "role": "agents"})
	c.Call("auth/enable", map[string]any{})
}

// Call calls a method of etcd's JSON gateway on the first member that runs, and returns the answer.
// It needs a cluster without TLS.
func (c *Cluster) Call(path string, request any) []byte {
	c.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		c.t.Fatal(err)
	}
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for i, m := range c.members {
		if !m.runs() {
			continue
		}
		r, err := client.Post(c.Endpoints()[i]+"/v3/"+path, "application/json", bytes.NewReader(body))
		if err != nil {
			c.t.Fatal(err)
		}
		defer r.Body.Close()
		answer, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			c.t.Fatalf("etcd answers %s to %s: %s (%v)", r.Status, path, answer, err)
		}
		return answer
	}
	c.t.Fatal("no etcd member runs")
	return nil
}
