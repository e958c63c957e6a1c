package httpapi

import "pawl/internal/books"

func exampleVerification(state books.VerificationState) verification {
	state.StartedAt, state.StartedBy, state.Total = exampleTime, "token:operations", 1025
	return verificationOf(state)
}

var exampleReport = books.Report{
	Seconds: 0.004, Orders: map[string]int64{"completed": 1023, "failed": 1},
	Checks: []books.Check{{
		Name: "stock", Proves: "A tracked item never has more reserved than on hand.", About: books.AboutItems, Checked: 1, Violations: 1,
		Offenders: []books.Offender{{ID: "widget", Fault: "3 reserved, 2 on hand"}},
	}},
	Money: []books.Money{{Currency: "USD", Charges: 1024, Charged: "102389.76", Refunded: "99.99", Authorized: "0", Kept: "102289.77"}},
}
