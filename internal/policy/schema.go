package policy

import (
	_ "embed" // for the line below
)

//go:embed schema.json
var schema string

// Schema returns the JSON schema of policies (draft 2020-12), for editors. It accepts all
// that Parse accepts; some of what Parse refuses it can't say.
func Schema() string { return schema }
