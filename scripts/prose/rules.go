package main

import (
	"regexp"
	"slices"
	"strings"
)

// rule describes one kind of bad phrase. The number of times that a sentence breaks the rule is the
// number of matches of the pattern, without those that overlap a match of the exception.
type rule struct {
	name   string
	match  *regexp.Regexp
	except *regexp.Regexp // nil if there are no exceptions
	broken func(sentence string) bool
	advice string

	// bad is a sentence that breaks the rule, and good is a better version of that sentence.
	bad, good string
}

var rules = []rule{
	{
		name:   "headless",
		match:  regexp.MustCompile(`(?i)\b(what|whatever|that which|which of)\b`),
		except: regexp.MustCompile(`(?i)\bwhat (to|happens|happened|kind|else|changes|changed|fails|failed)\b|\bwhat\b[^.]*\?$`),
		advice: "name the thing: the mount, the record, the plugin's answer",
		bad:    "Find what does not fit, and what comes of it.",
		good:   "Check this host for problems, and suggest fixes.",
	},
	{
		name:   "who",
		match:  regexp.MustCompile(`(?i)(^|[.;:,(—] ?|\b(?:of|to|for|by|from|and|or|says?|tells?|knows?) )(who|whoever)\b`),
		except: regexp.MustCompile(`(?i)\bwho\b[^.]*\?$`),
		advice: "name the person or program: the caller, the operator, the process",
		bad:    "Who uses a volume is on disk before the first step is taken.",
		good:   "The agent records the user of a volume before it calls the plugin.",
	},
	{
		name:   "nobody",
		match:  regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|anybody|someone|no one)(?:'s|’s)?\b`),
		except: regexp.MustCompile(`(?i)\b(user|as|uid|be|become|to|=) ?["“]?nobody\b`),
		advice: "name the person or program, or use the passive",
		bad:    "Nobody waits for that commit.",
		good:   "The caller does not wait for that commit.",
	},
	{
		name:   "is to be",
		match:  regexp.MustCompile(`(?i)\b(is|are|was|were) (still |not |never )?to (be|go|stay|come|have|do|become|get)\b`),
		advice: `write "must be", "will be", or use the active voice`,
		bad:    "The volume is to be detached.",
		good:   "The agent detaches the volume.",
	},
	{
		name:   "has it done",
		match:  regexp.MustCompile(`(?i)\b(has|have|had) (it|them|this|that) \w+(ed|en|ne|de)\b`),
		advice: "use the active voice",
		bad:    "Detach has it undone.",
		good:   "Detach undoes it.",
	},
	{
		name:   "dialect",
		match:  regexp.MustCompile(`(?i)\b(for good|no more|likewise|mend(s|ed|ing)?|stands? there|goes on|go on|went on|comes? of it|in the midst|given out|has not got|thereof|therein|whereof|wherein|lest|ere|as long as it stands|takes its time)\b`),
		except: regexp.MustCompile(`(?i)\b(no more than|no more \w+s\b)`),
		advice: "use the ordinary word: repair, also, permanently, no longer, continues",
		bad:    "The mount is no more, and what stands there goes on.",
		good:   "The mount is gone, and the process continues.",
	},
	{
		name: "old term",
		// The rule applies only to prose, so identifiers such as Debts are allowed.
		match:  regexp.MustCompile(`\b(debts?|owed|owes|owing|unpaid|indebted)\b`),
		advice: `the glossary in docs/ARCHITECTURE.md calls it a "pending call"`,
		bad:    "A debt blocks the volume.",
		good:   "A pending call blocks the volume.",
	},
	{
		name:   "one of many",
		match:  regexp.MustCompile(`\b1 (volumes|claims|plugins|mounts|files|calls|hosts|events|processes|seconds|minutes)\b`),
		advice: "use the singular",
		bad:    "Deleted 1 volumes.",
		good:   "Deleted 1 volume.",
	},
	{
		name:   "long sentence",
		broken: func(s string) bool { return len(strings.Fields(s)) > 30 },
		advice: "one fact per sentence, at most 30 words",
		bad: "The agent writes the record, calls the plugin, looks at the mount table, compares the mount with the " +
			"record, and then writes the record again, because the plugin may have answered wrongly in the meantime.",
		good: "The agent writes the record and calls the plugin. Then it compares the mount table with the record.",
	},
	{
		name:   "semicolons",
		broken: func(s string) bool { return strings.Count(s, "; ") > 1 },
		advice: "write separate sentences",
		bad:    "It stops; it waits; it starts.",
		good:   "It stops and waits. Then it starts.",
	},
}

// breaks returns how many times a sentence breaks the rule.
func (r *rule) breaks(sentence string) int {
	if r.broken != nil {
		if r.broken(sentence) {
			return 1
		}
		return 0
	}

	var allowed [][]int
	if r.except != nil {
		allowed = r.except.FindAllStringIndex(sentence, -1)
	}
	n := 0
	for _, m := range r.match.FindAllStringIndex(sentence, -1) {
		if !overlaps(allowed, m) {
			n++
		}
	}
	return n
}

func overlaps(spans [][]int, s []int) bool {
	return slices.ContainsFunc(spans, func(o []int) bool { return s[0] < o[1] && o[0] < s[1] })
}
