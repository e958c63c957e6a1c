package policy_test

import (
	"fmt"

	"pawl/internal/policy"
)

// A policy is YAML. What it leaves out has its default.
func ExampleParse() {
	p, err := policy.Parse([]byte(`
charge: {executor: http, url: "https://payments.example/do", undoUrl: "https://payments.example/undo", timeout: 10s}
approval:
  - {amountOver: 500, currency: USD, timeout: 24h}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("charge by", p.Charge.Executor, "within", p.Charge.Timeout, "and", p.Charge.Retry.MaxRetries, "retries")
	fmt.Println("reserve by", p.Reserve.Executor, "and confirm by", p.Confirm.Executor)
	fmt.Println("a person must approve more than", p.Approval[0].AmountOver, p.Approval[0].Currency)

	_, err = policy.Parse([]byte("charge:\n  executor: http\n  url: https://payments.example/do\nlimit: 5\n"))
	fmt.Println(err)
	// Output:
	// charge by http within 10s and 7 retries
	// reserve by ledger and confirm by ledger
	// a person must approve more than 500 USD
	// line 2, column 13: charge.undoUrl: is missing; http needs it
	// line 4, column 1: unknown key limit; must be one of charge, reserve, confirm, approval, reservationTtl, completeWithin, concurrency
}
