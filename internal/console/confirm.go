package console

import (
	"cmp"
	"slices"
)

// confirmation is the page between what a person asks for and what is done. It shows what would change; its button sends the
// form to the URL of the page.
type confirmation struct {
	Heading string
	Changes []change          // what a dry run said
	Notes   []string          // what else there is to know, in sentences
	Hidden  map[string]string // of the form: what was decided before, with the request id and the version that was looked at
	Fields  []field           // what the person can still say
	Button  string            // what it does, as a verb
	Danger  bool              // it can't be taken back
	Back    string            // where a person goes who does not want it
}

// change is something that will be different.
type change struct{ What, Before, After string }

// different are those of them that are changes.
func different(all ...change) []change {
	return slices.DeleteFunc(all, func(c change) bool { return c.Before == c.After })
}

// field is an input of a form.
type field struct {
	Name, Label, Help, Value string
	Type                     string // of the input; textarea and select are ones, too
	Options                  []string
	Words                    map[string]string // for options that are none
	Required                 bool
}

// said is the value as a person has chosen it.
func (f *field) said() string { return cmp.Or(f.Words[f.Value], f.Value) }
