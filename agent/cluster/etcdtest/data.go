package etcdtest

import (
	"os"
	"path/filepath"
)

// Save copies the data of a member, and returns the directory of the copy. The member is killed
// during that.
func (c *Cluster) Save(i int) string {
	c.t.Helper()
	c.Kill(i)
	saved := filepath.Join(c.t.TempDir(), "saved")
	if err := os.CopyFS(saved, os.DirFS(c.members[i].dir)); err != nil {
		c.t.Fatal(err)
	}
	c.Start(i)
	return saved
}

// Restore replaces the data of a member by a copy that Save has made, as an operator does with a
// backup. The member is stopped during that. The cluster must have no other member.
func (c *Cluster) Restore(i int, saved string) {
	c.t.Helper()
	c.Kill(i)
	dir := c.members[i].dir
	if err := os.RemoveAll(dir); err != nil {
		c.t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(saved)); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	c.Start(i)
}
