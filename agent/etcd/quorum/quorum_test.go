package quorum

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// parse makes members from a text: V is a healthy voter, v a dead one, L a healthy learner and l a
// dead one. Their names are a, b, c and so on.
func parse(text string) (members []Member) {
	for i, c := range text {
		m := Member{Name: string(rune('a' + i)), Voter: strings.ContainsRune("Vv", c), Healthy: strings.ContainsRune("VL", c)}
		if m.Healthy {
			m.Version = "3.7.3"
		}
		members = append(members, m)
	}
	return members
}

func TestPromotions(t *testing.T) {
	for members, want := range map[string]string{
		"V": "", "VL": "", "VLL": "bc", "VLl": "", "VVL": "c", "VV": "", "VVV": "", "VVVL": "", "VVVLL": "de",
		"VVvLL": "de", "VVVVL": "e", "vVL": "", "Vvv": "", "VVVVV": "", "VvvLL": "",
	} {
		got := ""
		for _, m := range Promotions(parse(members)) {
			got += m.Name
		}
		if got != want {
			t.Errorf("%s: promotes %q, want %q", members, got, want)
		}
	}
}

func TestNextRole(t *testing.T) {
	for _, tt := range []struct {
		members    int
		wish, want wire.Role
	}{
		{1, "", wire.RoleMember}, {4, "", wire.RoleMember}, {5, "", wire.RoleClient}, {1, wire.RoleClient, wire.RoleClient},
		{2, wire.RoleWitness, wire.RoleWitness}, {5, wire.RoleWitness, ""},
	} {
		got, err := NextRole(tt.members, tt.wish)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// refusal asserts that an error has a code and words. Empty words mean no error.
func refusal(t *testing.T, what string, err error, code api.Code, words string) {
	t.Helper()
	var e *api.Error
	switch {
	case words == "" && err == nil:
	case !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, words) || words == "":
		t.Errorf("%s: %v, want %s %q", what, err, code, words)
	}
}

func TestCheckRemove(t *testing.T) {
	for _, tt := range []struct {
		members, name string
		code          api.Code
		words         string
	}{
		{"V", "a", api.CodeRefused, "the only voter"},
		{"VL", "a", api.CodeRefused, "the only voter"},
		{"VL", "b", "", ""},
		{"VV", "a", "", ""},
		{"VVV", "a", "", ""},
		{"VVv", "c", "", ""},
		{"VVv", "a", api.CodeRefused, `the other voters, "c" does not answer`},
		{"VVVvv", "a", api.CodeRefused, `"d" and "e" do not answer`},
		{"VVVvv", "d", "", ""},
		{"Vvv", "b", api.CodeTimeout, "a majority of the voters does not answer"},
		{"VVV", "x", api.CodeNotFound, "no member"},
	} {
		refusal(t, tt.members+" without "+tt.name, CheckRemove(parse(tt.members), tt.name, false), tt.code, tt.words)
	}
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct{ cluster, host, words string }{
		{"3.7.3", "3.7.9", ""}, {"3.7.3", "3.8.0", ""}, {"3.8.0", "3.7.3", "of this host is too old"},
		{"3.5.9", "3.7.3", "of the cluster's etcd"}, {"3.7.3", "4.0.0", "cannot compare"},
	} {
		words := strings.Replace(tt.words, "of the cluster's etcd", "the cluster's etcd 3.5.9 is too old", 1)
		refusal(t, tt.cluster+" "+tt.host, CheckJoin(tt.cluster, tt.host), api.CodeRefused, words)
	}

	all := func(versions ...string) (members []Member) {
		for i, v := range versions {
			members = append(members, Member{Name: string(rune('a' + i)), Voter: true, Healthy: v != "", Version: v})
		}
		return members
	}
	for _, tt := range []struct {
		members   []Member
		installed string
		words     string
	}{
		{all("3.7.3", "3.7.3", "3.7.3"), "3.8.0", ""},
		{all("3.7.3", "3.8.0", "3.7.3"), "3.8.0", ""},
		{all("3.7.3", "3.7.3", "3.7.3"), "3.9.0", "one minor version at a time"},
		{all("3.7.3", "3.7.3", "3.7.3"), "3.6.0", "one minor version at a time"},
		{all("3.7.3", "3.7.1", "3.7.3"), "3.8.0", `member "b" runs etcd 3.7.1`},
		{all("3.7.3", "", "3.7.3"), "3.8.0", `member "b" is not healthy`},
	} {
		refusal(t, tt.installed, CheckUpgrade(tt.members, "a", tt.installed), api.CodeRefused, tt.words)
	}
}
