package policy_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"pawl/internal/policy"
	"pawl/test/assert"
)

// compiled is the published schema, as an editor reads it.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(policy.Schema()))
	assert.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	assert.NoError(t, compiler.AddResource("policy.json", document))
	schema, err := compiler.Compile("policy.json")
	assert.NoError(t, err)
	return schema
}

// instance is a source as an editor sees it.
func instance(source string) (document any, err error) {
	err = yaml.Load([]byte(source), &document)
	return document, err
}

// notInSchema are words in the refusals that speak of rules no schema can say.
var notInSchema = []string{
	"charge: unknown key; must", "given twice", "the last route must", "must have a condition", "no route after the last", "must be one YAML document", "is empty", "not YAML", "UTF-8", "control character", "KiB", "alias", "duplicate key, first",
	"must be a duration", "as 90s", "the same as url", "the same as undoUrl", "the same as captureUrl", "with on_confirm, the confirm", "confirms by capturing", "must not be less than initial", "too short", "at most 24h",
	"ISO 4217", "in octal", "must be a whole number", "must be an amount", "must be an absolute URL",
}

func TestSchema(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	t.Run("refuses what Parse refuses, where a schema can", func(t *testing.T) {
		t.Parallel()
		refused := 0
		for _, c := range refusals {
			document, err := instance(c.source)
			if err != nil {
				continue
			}
			err = schema.Validate(document)
			if err != nil {
				refused++
				continue
			}
			says := problems(t, c.source).Error()
			assert.True(t, containsAny(says, notInSchema), c.name, "the schema accepts", c.source, "of which Parse says", says)
		}
		assert.True(t, refused >= 60, "the schema refuses", refused, "of", len(refusals))
	})
	t.Run("accepts what Parse accepts", func(t *testing.T) {
		t.Parallel()
		for _, source := range accepted(t) {
			parse(t, source)
			document, err := instance(source)
			assert.NoError(t, err)
			assert.NoError(t, schema.Validate(document), source)
		}
	})
}

func containsAny(text string, words []string) bool {
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// accepted are policies: those of the documentation, and some that reach the limits.
func accepted(t *testing.T) []string {
	t.Helper()
	return append(documented(t),
		"{}\n",
		"charge: {}\n",
		http("url: HTTPS://a.b:8443?x=@1\n  secret: file:/run/secrets/key\n  timeout: 1.5m\n  callbackTimeout: 1h30m\n  retry: {factor: 1}"),
		"charge: {executor: simulator, url: 'http://127.0.0.1:4000/', secret: 'env:KEY'}\n",
		twoRoutes,
		"confirm: {executor: http, url: 'http://[::1]:8080/do', lookupUrl: 'http://a/'}\n",
		"approval: [{}, {amountOver: 0, currency: JPY}, {amountOver: 999999999999999.9999, currency: USD, approver: another, timeout: 1h, onTimeout: approve}]\n",
		"reservationTtl: 0s\ncompleteWithin: 8760h\nconcurrency: {by: customerId, limit: 1}\n",
		"charge: {executor: stripe, secret: 'env:KEY', webhookSecret: 'env:HOOK', capture: on_confirm}\nconfirm: {executor: stripe, breaker: {open: 1ms}}\n",
	)
}

// TestSchemaDefaults compares the defaults the schema speaks of with those that are filled in.
func TestSchemaDefaults(t *testing.T) {
	t.Parallel()
	bare := parse(t, http("url: http://a/do"))
	var schema struct {
		Defs map[string]struct {
			Default    any
			Properties map[string]struct{ Default any }
		} `yaml:"$defs"`
	}
	assert.NoError(t, yaml.Load([]byte(policy.Schema()), &schema))
	given := []string{}
	for _, key := range []string{"keyRetention", "callbackTimeout", "inFlight", "queue"} {
		given = append(given, key+": "+text(t, schema.Defs[key].Default))
	}
	for _, group := range []string{"retry", "breaker"} {
		given = append(given, group+":")
		for key, property := range schema.Defs[group].Properties {
			if property.Default != nil {
				given = append(given, "  "+key+": "+text(t, property.Default))
			}
		}
	}
	assert.True(t, len(given) >= 12, "the schema has defaults for", given)
	same(t, parse(t, http("url: http://a/do\n  "+strings.Join(given, "\n  "))), bare)
}

func text(t *testing.T, value any) string {
	t.Helper()
	assert.Require(t, value != nil, "no default in the schema")
	out, err := yaml.Dump(value)
	assert.NoError(t, err)
	return strings.TrimSpace(string(out))
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/policy.md")
	assert.NoError(t, err)
	return string(text)
}

// documented are the policies of the reference.
func documented(t *testing.T) (all []string) {
	t.Helper()
	for _, match := range yamlBlock.FindAllStringSubmatch(reference(t), -1) {
		all = append(all, match[1])
	}
	assert.True(t, len(all) >= 4, "the reference has", len(all), "policies, want one for each executor")
	return all
}

func TestReferenceExplainsEveryKey(t *testing.T) {
	t.Parallel()
	reference := reference(t)
	keys := 0
	for _, match := range regexp.MustCompile(`"([a-z][A-Za-z]+)": \{("description"|"\$ref"|$)`).FindAllStringSubmatch(policy.Schema(), -1) {
		keys++
		assert.Contains(t, reference, "`"+match[1]+"`", match[1], "is not explained")
	}
	assert.True(t, keys >= 25, keys, "keys found in the schema")
}
