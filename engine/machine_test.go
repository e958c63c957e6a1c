package engine_test

import (
	"testing"
)

// TestMoveTheMachineDoesNotKnow has the database complete an order that is to be charged, as a statement or a schema that
// went wrong would. Nobody is told that it is completed, and nothing is done for it.
func TestMoveTheMachineDoesNotKnow(t *testing.T) {
	t.Parallel()
	for to, heldFor := range map[string]string{"confirming": "unknown_move: charging to confirming", "completed": "none"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard`)
			b.exec(t, `CREATE FUNCTION jump() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF TG_TABLE_NAME = 'orders' AND NEW.status = 'reserving' THEN
					NEW.status := '`+to+`';
					IF NEW.status = 'completed' THEN
						NEW.ended_as := 'completed'; NEW.finished_at := now(); NEW.due_at := NULL; NEW.owner := NULL;
					END IF;
				END IF;
				RETURN NEW;
			END $$`)
			b.exec(t, `CREATE TRIGGER jump BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION jump()`)
			o, err := b.engine.Process(within(t, patience), request("order"))
			if err == nil || o.Status != "" {
				t.Fatalf("told %s, %v", o.Status, err)
			}
			stored := newGhost(b.Pool).stored(t, "order")[0]
			if string(stored.Status) != to || text(stored.HoldReason) != heldFor {
				t.Errorf("%s, held for %q", stored.Status, text(stored.HoldReason))
			}
			if n := value[int](t, b.Pool, `SELECT count(*) FROM reservations`); n != 0 {
				t.Errorf("%d reservations", n)
			}
		})
	}
}
