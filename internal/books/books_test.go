package books_test

import (
	"testing"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/test/assert"
)

// found is what Verify has to say about the books: check → offenders.
type found = map[string][]string

// of is the condition that picks the rows of one order.
func of(id string) string {
	return " order_no = (SELECT order_no FROM orders WHERE order_id = '" + id + "') "
}

// gone removes an order with all its rows.
func gone(id string) (text string) {
	for _, table := range []string{"transitions", "charges", "charge_operations", "reservations", "orders"} {
		text += "DELETE FROM " + table + " WHERE" + of(id) + "; "
	}
	return text
}

// A fault is planted with whatever refuses it switched off first: all triggers always are.
const (
	noGuards  = "SET LOCAL session_replication_role = replica; "
	noChecks  = "ALTER DOMAIN order_status DROP CONSTRAINT order_status; "
	noSingles = "DROP INDEX charges_live; DROP INDEX reservations_live; "
)

// asked inserts a requested refund of the completed order, past the rules of the database.
func asked(amount string) string {
	return "ALTER TABLE charge_operations DISABLE TRIGGER USER; ALTER TABLE transitions DISABLE TRIGGER USER; UPDATE orders SET charge_operations = 1, seq = seq + 1 WHERE" + of("completed") + `;
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
			SELECT order_no, seq, status, status, fence, 'refund' FROM orders WHERE` + of("completed") + `;
		INSERT INTO charge_operations (order_no, generation, number, currency, amount, request_id, finished_at)
		SELECT order_no, generation, 1, currency, ` + amount + `, 'r', now() FROM orders WHERE` + of("completed")
}

func TestEveryFaultIsFoundByItsCheckAndNoOther(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	filled := newShop(t)
	filled.fill()
	filled.fillRemote()
	for _, fault := range []struct { //nolint:paralleltest // as above
		name, plant string
		want        found
	}{
		// What a completed order stands on.
		{"completed without its charge", "DELETE FROM charges WHERE" + of("completed"),
			found{"completed": {"completed"}, "money": {"EUR"}}},
		{"completed and charged twice", noSingles + "INSERT INTO charges SELECT order_no, now(), NULL, 1, currency, amount FROM charges WHERE" + of("completed"),
			found{"completed": {"completed"}, "money": {"EUR"}}},
		{"redriven and the charge before never given back", noSingles + "UPDATE charges SET refunded_at = NULL WHERE generation = 0 AND" + of("redriven"),
			found{"completed": {"redriven"}, "undone": {"redriven"}, "refunds": {"redriven"}, "money": {"EUR"}}},
		{"charged another amount", "UPDATE charges SET amount = 10.51 WHERE" + of("completed"),
			found{"completed": {"completed"}, "money": {"EUR"}}},
		{"charged another currency", "UPDATE charges SET currency = 'USD' WHERE" + of("completed"),
			found{"completed": {"completed"}, "money": {"EUR", "USD"}}},
		{"charged in another generation", "UPDATE charges SET generation = 1 WHERE" + of("completed"),
			found{"completed": {"completed"}}},
		{"completed with a charge given back", "UPDATE charges SET refunded_at = now() WHERE" + of("completed"),
			found{"completed": {"completed"}, "undone": {"completed"}, "refunds": {"completed"}, "money": {"EUR"}}},
		{"completed without its reservation", "DELETE FROM reservations WHERE" + of("completed"),
			found{"completed": {"completed"}, "stock": {"lamp"}}},
		{"reserved twice", noSingles + "INSERT INTO reservations SELECT order_no, now(), NULL, 1, quantity, 1, item FROM reservations WHERE" + of("completed"),
			found{"completed": {"completed"}, "stock": {"lamp"}}},
		{"reserved another quantity", "UPDATE reservations SET quantity = 3 WHERE" + of("completed"),
			found{"completed": {"completed"}, "stock": {"lamp"}}},
		{"reserved another item", "UPDATE reservations SET item = 'rug' WHERE" + of("completed"),
			found{"completed": {"completed"}, "stock": {"lamp", "rug"}}},
		{"completed with a reservation given back", "UPDATE reservations SET released_at = now() WHERE" + of("completed"),
			found{"completed": {"completed"}, "undone": {"completed"}, "stock": {"lamp"}}},

		// What every other status promises.
		{"pending and charged", "INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, currency, amount FROM orders WHERE" + of("pending"),
			found{"states": {"pending"}, "money": {"EUR"}}},
		{"charging and charged before", "INSERT INTO charges (order_no, generation, currency, amount, refunded_at) SELECT order_no, 0, currency, 0, now() FROM orders WHERE" + of("charging"),
			found{"states": {"charging"}, "undone": {"charging"}, "refunds": {"charging"}}},
		{"reserving without a charge", "DELETE FROM charges WHERE" + of("reserving"),
			found{"states": {"reserving"}, "money": {"EUR"}}},
		{"reserving and reserved", "INSERT INTO reservations (order_no, generation, quantity, item) SELECT order_no, 0, quantity, item FROM orders WHERE" + of("reserving"),
			found{"states": {"reserving"}, "stock": {"lamp"}}},
		{"confirming without a reservation", "DELETE FROM reservations WHERE" + of("confirming"),
			found{"states": {"confirming"}, "stock": {"lamp"}}},
		{"held without a reservation", "DELETE FROM reservations WHERE" + of("held"),
			found{"states": {"held"}, "stock": {"lamp"}}},
		{"releasing without a reservation", "DELETE FROM reservations WHERE" + of("releasing"),
			found{"states": {"releasing"}, "stock": {"chair"}}},
		{"refunding without a charge", "DELETE FROM charges WHERE" + of("refunding"),
			found{"states": {"refunding"}, "money": {"EUR"}}},
		{"refunding and still reserved", "UPDATE reservations SET released_at = NULL WHERE" + of("refunding"),
			found{"states": {"refunding"}, "undone": {"refunding"}, "stock": {"chair"}}},
		{"failed and still charged", "UPDATE charges SET refunded_at = NULL WHERE" + of("failed") + "; DELETE FROM charge_operations WHERE" + of("failed"),
			found{"states": {"failed"}, "undone": {"failed"}, "money": {"EUR"}}},
		{"canceled and still reserved", "UPDATE reservations SET released_at = NULL WHERE" + of("canceled"),
			found{"states": {"canceled"}, "undone": {"canceled"}, "stock": {"chair"}}},
		{"an unknown status", noChecks + "UPDATE orders SET status = 'lost' WHERE" + of("charging"),
			found{"states": {"charging"}, "path": {"charging"}}},

		// What was taken back.
		{"charge and refund of a failed order gone", "DELETE FROM charges WHERE" + of("failed") + "; DELETE FROM charge_operations WHERE" + of("failed"),
			found{"undone": {"failed"}}},
		{"released reservation gone", "DELETE FROM reservations WHERE" + of("canceled"),
			found{"undone": {"canceled"}}},
		{"refund gone", "DELETE FROM charge_operations WHERE" + of("canceled"),
			found{"refunds": {"canceled"}, "money": {"EUR"}}},
		{"refund of a charge that stands", "INSERT INTO charge_operations (order_no, generation, currency, amount) SELECT order_no, 0, currency, amount FROM orders WHERE" + of("completed"),
			found{"refunds": {"completed"}, "money": {"EUR"}}},
		{"refunded twice", "INSERT INTO charge_operations (order_no, generation, currency, amount) SELECT order_no, 1, currency, amount FROM orders WHERE" + of("failed"),
			found{"refunds": {"failed"}, "money": {"EUR"}}},
		{"refunded another amount", "UPDATE charge_operations SET amount = 10.49 WHERE" + of("failed"),
			found{"refunds": {"failed"}, "money": {"EUR"}}},
		{"refunded more than was charged", asked("10.51"), found{"refunds": {"completed"}}},
		{"a refund that the order does not count", asked("1") + "; UPDATE orders SET charge_operations = NULL WHERE" +
			of("completed"), found{"refunds": {"completed"}}},
		{"a refund that is gone", asked("1") + "; DELETE FROM charge_operations WHERE number = 1", found{"refunds": {"completed"}}},
		{"a refund without history", asked("1") + "; UPDATE transitions SET verb = 'rest' WHERE verb = 'refund'", found{"refunds": {"completed"}}},
		{"refunded in another currency", asked("1") + "; UPDATE charge_operations SET currency = 'USD' WHERE number = 1", found{"refunds": {"completed"}}},
		{"refunded of another generation", asked("1") + "; UPDATE charge_operations SET generation = 1 WHERE number = 1", found{"refunds": {"completed"}}},
		{"refunded by a provider that was never called", asked("1") +
			"; UPDATE charge_operations SET executor = 'http' WHERE number = 1", found{"refunds": {"completed"}}},
		{"a pending refund in the ledger", asked("1") + "; UPDATE charge_operations SET state = 'pending', finished_at = NULL WHERE number = 1", found{"refunds": {"completed"}}},
		{"settled as failed, and answered done", asked("1") + "; UPDATE charge_operations SET executor = 'http', state = 'failed', code = 'by_hand' WHERE number = 1; UPDATE charges SET executor = 'http' WHERE" + of("completed") +
			"; INSERT INTO step_calls (order_no, call, fence, generation, step, operation, charge_operation, outcome, finished_at) SELECT order_no, -1, fence, generation, 'charge', 'refund', 1, 'done', now() FROM orders WHERE" + of("completed"),
			found{"refunds": {"completed"}, "completed": {"completed"}, "calls": {"completed"}}},
		{"accepted, without a result", asked("1") + "; UPDATE charge_operations SET state = 'accepted', finished_at = NULL, code = 'outcome_unknown', due_at = now(), created_at = now() - interval '61 minutes' WHERE number = 1",
			found{"refunds": {"completed"}, "late": {"completed"}}},
		{"more put back than was sold", asked("1") + "; UPDATE charge_operations SET restock = 3, created_at = now() - interval '1 hour' WHERE number = 1", found{"refunds": {"completed"}}},
		{"refunded another generation", "UPDATE charge_operations SET generation = 1 WHERE" + of("failed"),
			found{"refunds": {"failed"}}},

		// The path through the machine.
		{"no history", "DELETE FROM transitions WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"a gap in the history", "DELETE FROM transitions WHERE seq = 2 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"the last row of the history gone", "DELETE FROM transitions WHERE seq = 4 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"a row behind the end", "INSERT INTO transitions (order_no, at, fence, seq, from_status, to_status) SELECT order_no, at, fence, 5, to_status, to_status FROM transitions WHERE seq = 4 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"history starts in the middle", "UPDATE transitions SET from_status = 'reserving', to_status = 'reserving' WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"history starts from nowhere but as charging", "UPDATE transitions SET from_status = NULL WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"a row that does not start where the last ended", "UPDATE transitions SET from_status = 'charging' WHERE seq = 4 AND" + of("canceled"),
			found{"path": {"canceled"}}},
		{"a row from nowhere", "UPDATE transitions SET from_status = NULL WHERE seq = 3 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"an edge the machine does not have", "UPDATE transitions SET to_status = 'confirming' WHERE seq = 2 AND" +
			of("completed") + "; UPDATE transitions SET from_status = 'confirming' WHERE seq = 3 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"ends elsewhere than the order", "UPDATE transitions SET to_status = 'releasing' WHERE seq = 4 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"fence falls", "UPDATE transitions SET fence = 2 WHERE seq = 3 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"fence jumps", "UPDATE transitions SET fence = 3 WHERE seq >= 4 AND" + of("held") + "; UPDATE orders SET fence = 3 WHERE" + of("held"),
			found{"path": {"held"}}},
		{"fence raised without a row", "UPDATE orders SET fence = fence + 1 WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"seq raised without a row", "UPDATE orders SET seq = seq + 1 WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"a generation without a redrive", "UPDATE orders SET generation = 1 WHERE" + of("charging"),
			found{"path": {"charging"}}},
		{"take-overs that never were", "UPDATE orders SET take_overs = 2 WHERE" + of("charging"),
			found{"path": {"charging"}}},

		// The columns that drive an order.
		{"finished and due", noChecks + "UPDATE orders SET due_at = now() + interval '1 hour' WHERE" + of("completed"),
			found{"protocol": {"completed"}}},
		{"finished and owned", noChecks + "UPDATE orders SET owner = gen_random_uuid() WHERE" + of("failed"),
			found{"protocol": {"failed"}}},
		{"finished and not ended", noChecks + "UPDATE orders SET ended_as = NULL WHERE" + of("completed"),
			found{"protocol": {"completed"}}},
		{"finished at no time", "UPDATE orders SET finished_at = NULL WHERE" + of("completed"),
			found{"protocol": {"completed"}}},
		{"ended before it is finished", noChecks + "UPDATE orders SET ended_as = 'failed' WHERE" + of("refunding"),
			found{"protocol": {"refunding"}}},
		{"neither due nor held", noChecks + "UPDATE orders SET due_at = NULL WHERE" + of("charging"),
			found{"protocol": {"charging"}}},
		{"held and driven", noChecks + "UPDATE orders SET owner = gen_random_uuid() WHERE" + of("held"),
			found{"protocol": {"held"}}},
		{"driven without a claim", "UPDATE orders SET owner = gen_random_uuid() WHERE" + of("pending"),
			found{"protocol": {"pending"}}},
		{"a reason to hold what is not held", "UPDATE orders SET hold_reason = 'x' WHERE" + of("charging"),
			found{"protocol": {"charging"}}},
		{"failed with the outcome canceled", "UPDATE orders SET outcome = 'canceled' WHERE" + of("failed"),
			found{"protocol": {"failed"}}},
		{"undone without an outcome", "UPDATE orders SET outcome = NULL WHERE" + of("releasing"),
			found{"protocol": {"releasing"}}},
		{"forward with an outcome", "UPDATE orders SET outcome = 'failed' WHERE" + of("reserving"),
			found{"protocol": {"reserving"}}},
		{"failed without a reason", "UPDATE orders SET failure_code = NULL WHERE" + of("failed"),
			found{"protocol": {"failed"}}},
		{"canceled without a request", "UPDATE orders SET stop_requested = NULL WHERE" + of("early"),
			found{"protocol": {"early"}}},
		{"completed with a failure", "UPDATE orders SET failure_step = 'reserve' WHERE" + of("completed"),
			found{"protocol": {"completed"}}},
		{"completed after a request to stop", "UPDATE orders SET stop_requested = 'cancel' WHERE" + of("completed"),
			found{"protocol": {"completed"}}},

		// Lines.
		{"other units in lines", "UPDATE orders SET item = '', lines = '[{\"item\":\"lamp\",\"quantity\":3}]' WHERE" + of("completed"),
			found{"lines": {"completed"}}},
		{"another sum of the lines", "UPDATE orders SET item = '', lines = '[{\"item\":\"lamp\",\"quantity\":2,\"amount\":\"9\"}]' WHERE" + of("completed"),
			found{"lines": {"completed"}}},
		{"lines beside an item", "UPDATE orders SET lines = '[{\"item\":\"lamp\",\"quantity\":2}]' WHERE" + of("completed"),
			found{"lines": {"completed"}}},
		{"neither lines nor an item", "UPDATE orders SET item = '' WHERE" + of("charging"),
			found{"lines": {"charging"}}},
		{"reserved another line", "INSERT INTO reservations (order_no, generation, line, item, quantity) SELECT order_no, 0, 2, 'rug', 1 FROM orders WHERE" + of("completed"),
			found{"lines": {"completed"}, "stock": {"rug"}}},
		{"reserved items of other lines", "UPDATE orders SET item = '', lines = '[{\"item\":\"lamp\",\"quantity\":1},{\"item\":\"rug\",\"quantity\":1}]' WHERE" + of("completed"),
			found{"lines": {"completed"}}},

		// Stock.
		{"more reserved than reservations stand", "UPDATE inventory SET reserved = reserved + 1 WHERE item = 'lamp'",
			found{"stock": {"lamp"}}},
		{"fewer reserved than reservations stand", "UPDATE inventory SET reserved = reserved - 1 WHERE item = 'chair'",
			found{"stock": {"chair"}}},
		{"reserved without reservations", "INSERT INTO inventory (item, reserved) VALUES ('rug', 1)",
			found{"stock": {"rug"}}},
		{"oversold", "ALTER TABLE inventory DROP CONSTRAINT inventory_not_oversold; UPDATE inventory SET on_hand = 3 WHERE item = 'lamp'",
			found{"stock": {"lamp"}}},
		{"reserved, but not in the inventory", "DELETE FROM inventory WHERE item = 'chair'",
			found{"stock": {"chair"}}},

		{"more on hand than came", "UPDATE inventory SET on_hand = on_hand + 1 WHERE item = 'lamp'",
			found{"stock": {"lamp"}}},
		{"on hand though it is not tracked", "UPDATE inventory SET on_hand = 1 WHERE item = 'chair'",
			found{"stock": {"chair"}}},
		{"not tracked any more", "UPDATE inventory SET tracked = false WHERE item = 'sofa'",
			found{"stock": {"sofa"}}},
		{"more sold than was", "UPDATE inventory SET sold = sold + 1, on_hand = on_hand - 1 WHERE item = 'sofa'",
			found{"stock": {"sofa"}}},
		{"another movement", "UPDATE stock_movements SET change = change - 1, on_hand = on_hand - 1 WHERE item = 'lamp'",
			found{"stock": {"lamp"}}},
		{"a movement gone", "DELETE FROM stock_movements WHERE item = 'sofa' AND version = 1",
			found{"stock": {"sofa"}}},
		{"a movement that adds up to nothing", "INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) SELECT item, 0, 'set', 0, 5, 0, 'local', 'x' FROM inventory WHERE item = 'sofa'",
			found{"stock": {"sofa"}}},
		{"a movement of no item", "INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) VALUES ('rug', 1, 'set', 5, 5, 0, 'local', 'x')",
			found{"stock": {"rug"}}},
		{"an item gone", "DELETE FROM inventory WHERE item = 'sofa'",
			found{"stock": {"sofa"}}},

		// What was written once.
		{"an order renamed", "UPDATE orders SET order_id = 'other' WHERE" + of("completed"),
			found{"path": {"other"}}},
		{"made at another time", "UPDATE orders SET created_at = created_at - interval '1 second' WHERE" + of("failed"),
			found{"path": {"failed"}}},
		{"the end of the history set back", "UPDATE transitions SET at = at - interval '1 second' WHERE seq = 4 AND" + of("completed"),
			found{"path": {"completed"}}},
		{"the middle of the history set back", "UPDATE transitions SET at = at - interval '1 day' WHERE seq = 2 AND" + of("held"),
			found{"path": {"held"}}},
		{"the whole history set back", "UPDATE transitions SET at = at - interval '1 day' WHERE" + of("charging"),
			found{"path": {"charging"}}},

		// Rows without an order, and orders without a row.
		{"an order gone", "DELETE FROM orders WHERE" + of("charging"),
			found{"orphans": {"order_no 2"}, "numbers": {"order_no 2"}}},
		{"a whole order gone", gone("failed"),
			found{"numbers": {"order_no 9"}}},
		{"a whole order gone that was sold", gone("completed"),
			found{"numbers": {"order_no 5"}, "stock": {"lamp"}}},
		{"a row of the orders and its followers gone", gone("charging") + gone("reserving") + gone("confirming"),
			found{"numbers": {"order_no 4"}, "stock": {"lamp"}}},
		{"a dispute that was counted, but not recorded", "UPDATE orders SET disputes = 1 WHERE" + of("sold"),
			found{"refunds": {"sold"}}},
		{"a dispute that is not in the history", "INSERT INTO disputes (order_no, reference, state, amount, currency, at) SELECT order_no, 'dp', 'lost', 5, 'EUR', now() FROM orders WHERE" + of("sold"),
			found{"refunds": {"sold"}}},
		{"a dispute without an order", "INSERT INTO disputes (order_no, reference, state, amount, currency, at) VALUES (999, 'dp', 'lost', 5, 'EUR', now())",
			found{"orphans": {"order_no 999"}}},
		{"history without an order", "INSERT INTO transitions (order_no, seq, to_status, fence) VALUES (999, 1, 'pending', 0)",
			found{"orphans": {"order_no 999"}}},
		{"a charge without an order, far behind the last order", "INSERT INTO charges (order_no, generation, currency, amount) VALUES (9223372036854775807, 0, 'EUR', 5)",
			found{"orphans": {"order_no 9223372036854775807"}, "money": {"EUR"}}},
		{"a refund without an order", "INSERT INTO charge_operations (order_no, generation, currency, amount) VALUES (1000000000000, 0, 'EUR', 5)",
			found{"orphans": {"order_no 1000000000000"}, "money": {"EUR"}}},
		{"a reservation without an order, before the first order", "INSERT INTO reservations (order_no, generation, item, quantity) VALUES (-9223372036854775808, 0, 'lamp', 1)",
			found{"orphans": {"order_no -9223372036854775808"}, "stock": {"lamp"}}},

		// What was done remotely.
		{"completed and only authorized", "UPDATE charges SET captured_at = NULL WHERE" + of("sold"),
			found{"completed": {"sold"}}},
		{"captured before it was confirmed", "UPDATE charges SET captured_at = now() WHERE" + of("waiting"),
			found{"states": {"waiting"}}},
		{"goes on with a charge in doubt", "UPDATE charges SET in_doubt = true WHERE" + of("waiting"),
			found{"states": {"waiting"}, "money": {"EUR"}}},
		{"completed with a reservation in doubt", "UPDATE reservations SET in_doubt = true WHERE" + of("sold"),
			found{"completed": {"sold"}}},
		{"in doubt, but the ledger's", "UPDATE charges SET in_doubt = true WHERE" + of("refunding"),
			found{"states": {"refunding"}, "money": {"EUR"}}},
		{"done remotely without a policy", "UPDATE orders SET policy = NULL WHERE" + of("sold"),
			found{"completed": {"sold"}}},
		{"remote without a policy", "UPDATE orders SET policy = NULL WHERE" + of("in doubt"),
			found{"protocol": {"in doubt"}}},
		{"stopped in doubt and the charge not put down", "DELETE FROM charges WHERE" + of("stopped"),
			found{"undone": {"stopped"}, "refunds": {"stopped"}, "money": {"EUR"}}},
		{"stopped in doubt and the charge still there", "UPDATE charges SET refunded_at = NULL WHERE" + of("stopped") +
			"; DELETE FROM charge_operations WHERE" + of("stopped"),
			found{"states": {"stopped"}, "undone": {"stopped"}}},
		{"stopped in doubt without a refund", "DELETE FROM charge_operations WHERE" + of("stopped"),
			found{"refunds": {"stopped"}}},
		{"known by an undo that named nothing", "UPDATE charges SET in_doubt = false WHERE" + of("stopped"),
			found{"calls": {"stopped"}}},
		{"in doubt in spite of what its undo named", "UPDATE charge_operations SET reference = 'rf_1' WHERE" + of("stopped"),
			found{"refunds": {"stopped"}}},
		{"releasing what was in doubt and not put down", "DELETE FROM reservations WHERE" + of("voiding"),
			found{"states": {"voiding"}}},
		{"finished in doubt", "UPDATE orders SET in_doubt_since = now() WHERE" + of("sold"),
			found{"protocol": {"sold"}}},
		{"in doubt without a call", "UPDATE orders SET in_doubt_since = now(), policy = 1 WHERE" + of("charging"),
			found{"protocol": {"charging"}}},
		{"waits for a callback for ever", "UPDATE orders SET due_at = NULL WHERE" + of("waiting"),
			found{"protocol": {"waiting"}}},
		{"waits for another try for ever", "UPDATE orders SET due_at = NULL, hold = 'retry' WHERE" + of("waiting"),
			found{"protocol": {"waiting"}}},
		{"waits for a person and is due", "UPDATE orders SET due_at = now() + interval '1 hour' WHERE" + of("held"),
			found{"protocol": {"held"}}},
		{"the calls of a charge gone", "DELETE FROM step_calls WHERE step = 'charge' AND" + of("sold"),
			found{"calls": {"sold"}}},
		{"the answer of a confirmation gone", "UPDATE step_calls SET outcome = NULL, finished_at = NULL WHERE step = 'confirm' AND" + of("sold"),
			found{"calls": {"sold"}}},
		{"done by an answer that was fenced", "UPDATE step_calls SET fenced = true WHERE step = 'reserve' AND" + of("sold"),
			found{"calls": {"sold"}}},
		{"refunded without an answer", "UPDATE step_calls SET outcome = 'unknown' WHERE operation = 'undo' AND step = 'charge' AND" + of("refused"),
			found{"calls": {"refused"}}},
		{"in doubt without a do", "UPDATE step_calls SET operation = 'undo' WHERE" + of("voiding"),
			found{"calls": {"voiding"}}},
		{"an answer that was used gone", "DELETE FROM step_answers WHERE" + of("told"),
			found{"calls": {"told"}}},
		{"an answer taken for used that was not", "UPDATE step_answers SET consumed_at = NULL WHERE" + of("told"),
			found{"calls": {"told"}}},
		{"answered done and not in the books", "UPDATE step_calls SET finished_at = now(), outcome = 'done' WHERE" + of("in doubt"),
			found{"calls": {"in doubt"}}},
		{"a call that was not counted", "UPDATE orders SET calls = 2 WHERE" + of("in doubt"),
			found{"calls": {"in doubt"}}},
		{"a call of a generation that never was", "UPDATE step_calls SET generation = 1 WHERE" + of("in doubt"),
			found{"calls": {"in doubt"}}},
		{"a confirmation gone", "DELETE FROM confirmations WHERE" + of("sold"),
			found{"calls": {"sold"}}},
		{"confirmed in another generation", "UPDATE confirmations SET generation = 1 WHERE" + of("sold"),
			found{"calls": {"sold"}}},
		{"confirmed and not completed", "INSERT INTO confirmations (order_no, generation, executor) SELECT order_no, 0, 'simulator' FROM orders WHERE" + of("waiting"),
			found{"calls": {"waiting"}}},
		{"what is reserved remotely counted as ours", "UPDATE reservations SET executor = NULL WHERE" + of("sold"),
			found{"calls": {"sold"}, "stock": {"boat"}}},
		{"a late effect that is not undone", "UPDATE late_undos SET created_at = now() - interval '61 minutes'",
			found{"late": {"late"}}},
		{"a confirmation without an order", "INSERT INTO confirmations (order_no, generation, executor) VALUES (999, 0, 'simulator')",
			found{"orphans": {"order_no 999"}}},
		{"a call without an order", "INSERT INTO step_calls (order_no, call, fence, generation, step, operation) VALUES (999, 1, 1, 0, 'charge', 'do')",
			found{"orphans": {"order_no 999"}}},
		{"an answer without an order", "INSERT INTO step_answers (order_no, generation, step, source, outcome) VALUES (999, 0, 'charge', 'callback', 'done')",
			found{"orphans": {"order_no 999"}}},
		{"a late effect without an order", "INSERT INTO late_undos (order_no, generation, step, reason) VALUES (999, 0, 'charge', 'test')",
			found{"orphans": {"order_no 999"}}},

		{"a token that was never made", "INSERT INTO access_log (entry_no, event, actor, subject, detail) OVERRIDING SYSTEM VALUE VALUES (900, 'token_created', 'maria', 'eve', '0123456789 for admin')",
			found{"access_log": {"900"}}},
		{"a session that was not ended", "INSERT INTO access_log (entry_no, event, actor, subject) OVERRIDING SYSTEM VALUE VALUES (900, 'session_ended', 'token:maria', 'maria')",
			found{"access_log": {"900"}}},

		{"due, but not picked up", "UPDATE orders SET due_at = now() - interval '10 minutes' WHERE" + of("reserving"),
			found{"stuck": {"reserving"}}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			report := filled.in(t).verifyWith(noGuards+fault.plant, books.Options{})
			assert.Equal(t, offenders(report), fault.want, "found")
			_, warning := fault.want["stuck"]
			assert.Equal(t, report.OK(), warning, "OK() =")
			for _, check := range report.Checks {
				assert.Equal(t, check.Violations, int64(len(fault.want[check.Name])), check.Name)
				for _, offender := range check.Offenders {
					assert.True(t, offender.Fault != "", check.Name, "nothing said about", offender.ID)
				}
			}
		})
	}
}

// TestRefundsByLineAreProved: their units are those of the order, and what they put back is in the stock.
func TestRefundsByLineAreProved(t *testing.T) { //nolint:tparallel // they share a database, as below
	t.Parallel()
	s := newShop(t)
	s.stock("lamp", 10)
	s.stock("rug", 10)
	s.admit("basket", "lamp")
	s.sql(`ALTER TABLE orders DISABLE TRIGGER USER; UPDATE orders SET item = '', quantity = 3,
		lines = '[{"item":"rug","quantity":1,"amount":"9.50"},{"item":"lamp","quantity":2,"amount":"1.00"}]' WHERE order_id = 'basket'; ALTER TABLE orders ENABLE TRIGGER USER`)
	s.moveTo("basket", fsm.Completed)
	o := s.order("basket")
	rows, err := s.q.ChargeOperationAsk(s.ctx, db.ChargeOperationAskParams{OrderNo: o.OrderNo, Seq: o.Seq, Amount: decimal.MustParse("10.00"), Restock: new(int32(2)),
		Lines: []byte(`[{"line":1,"item":"rug","quantity":1,"amount":"9.50","restock":true},{"line":2,"item":"lamp","quantity":1,"amount":"0.50","restock":true}]`),
		Verb:  "refund", RequestID: new("ticket-1")})
	s.must(err)
	assert.Equal(t, len(rows), 1, "refunds")
	const plant = noGuards + "UPDATE stock_movements SET at = at - interval '2 minutes' WHERE kind = 'set'; "
	for name, fault := range map[string]struct { //nolint:paralleltest // as above
		plant string
		want  found
	}{
		"as they should be": {"", found{}},
		"more units":        {`UPDATE charge_operations SET lines = '[{"line":2,"item":"lamp","quantity":3,"amount":"1.00"}]', restock = NULL`, found{"refunds": {"basket"}, "stock": {"lamp", "rug"}}},
		"another amount":    {`UPDATE charge_operations SET lines = replace(lines::text, '9.50', '9.49')::json`, found{"refunds": {"basket"}}},
		"another line":      {`UPDATE charge_operations SET lines = replace(lines::text, '"line":2', '"line":3')::json`, found{"refunds": {"basket"}}},
		"other units back":  {`UPDATE charge_operations SET lines = replace(lines::text, '"quantity":1,"amount":"0.50"', '"quantity":2,"amount":"1.00"')::json`, found{"stock": {"lamp"}}},
		"not back in stock": {`DELETE FROM stock_movements WHERE kind = 'restock' AND item = 'rug'; UPDATE inventory SET on_hand = on_hand - 1 WHERE item = 'rug'`, found{"stock": {"rug"}}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, offenders(s.in(t).verifyWith(plant+fault.plant, books.Options{})), fault.want, "found")
		})
	}
}

// restock refunds one cent of a completed order, and puts a unit back.
func (s *shop) restock(id string) {
	s.Helper()
	o := s.order(id)
	one, request := int32(1), "ticket-1"
	rows, err := s.q.ChargeOperationAsk(s.ctx, db.ChargeOperationAskParams{
		OrderNo: o.OrderNo, Seq: o.Seq, Amount: decimal.MustParse("0.01"), Restock: &one, Verb: "refund", RequestID: &request})
	s.must(err)
	if len(rows) != 1 {
		s.Fatalf("order %q was not refunded", id)
	}
}

// What refunds put back is in the stock as they say. Where no stock is counted, nothing is put back, and none is missing
// when it is counted later.
func TestRestocksAreProved(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	const earlier = "UPDATE stock_movements SET at = at - interval '2 minutes' WHERE kind = 'set' AND item = 'lamp'; "
	const made = "kind = 'restock' AND item = 'lamp'"
	restocked := newShop(t)
	restocked.stock("lamp", 10)
	for id, item := range map[string]string{"sold": "lamp", "uncounted": "rug"} {
		restocked.admit(id, item)
		restocked.moveTo(id, fsm.Completed)
		restocked.restock(id)
	}
	restocked.stock("rug", 7)
	for name, fault := range map[string]struct { //nolint:paralleltest // as above
		plant string
		want  found
	}{
		"as they should be":             {"", found{}},
		"of another refund":             {"UPDATE stock_movements SET request_id = 'refund 2 of sold' WHERE " + made, found{"stock": {"lamp"}}},
		"another number":                {"UPDATE charge_operations SET restock = 2 WHERE number = 1 AND" + of("sold"), found{"stock": {"lamp"}}},
		"never asked for":               {"UPDATE charge_operations SET restock = NULL WHERE number = 1 AND" + of("sold"), found{"stock": {"lamp"}}},
		"an adjustment after all":       {"UPDATE stock_movements SET kind = 'adjustment' WHERE " + made, found{"stock": {"lamp"}}},
		"refund says so, not the stock": {"UPDATE inventory SET on_hand = on_hand - 1 WHERE item = 'lamp'; DELETE FROM stock_movements WHERE " + made, found{"stock": {"lamp"}}},
	} {
		t.Run(name, func(t *testing.T) {
			report := restocked.in(t).verifyWith(noGuards+earlier+fault.plant, books.Options{})
			assert.Equal(t, offenders(report), fault.want, "found")
			for _, check := range report.Checks {
				for _, o := range check.Offenders {
					assert.Contains(t, o.Fault, "units of refund ", "says")
				}
			}
		})
	}
}
