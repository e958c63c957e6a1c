package policy_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"pawl/internal/policy"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documented are the policies of the reference.
func documented(t *testing.T) (all []string) {
	t.Helper()
	for _, match := range yamlBlock.FindAllStringSubmatch(reference(t), -1) {
		all = append(all, match[1])
	}
	if len(all) < 4 {
		t.Errorf("the reference has %d policies, want one for each executor", len(all))
	}
	return all
}

func TestReferenceExplainsEveryKey(t *testing.T) {
	t.Parallel()
	reference := reference(t)
	keys := 0
	for _, match := range regexp.MustCompile(`"([a-z][A-Za-z]+)": \{("description"|"\$ref"|$)`).FindAllStringSubmatch(policy.Schema(), -1) {
		if keys++; !strings.Contains(reference, "`"+match[1]+"`") {
			t.Errorf("%s is not explained", match[1])
		}
	}
	if keys < 25 {
		t.Errorf("%d keys found in the schema", keys)
	}
}
