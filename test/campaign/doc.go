// Package campaign puts the real program through faults that last, and judges it by its documents alone. It shares no
// code with the service: it has a provider, a client and checks of its own, and reads the database through the views in
// the schema books. A mistake that the service and its own tests have in common is not one here.
//
// Each campaign is a row of a table: some replicas of the program, callers that send orders and repeat them until there
// is a final answer, a provider that answers late, twice, with errors or not at all, and a fault that goes on all the
// time: connections that go silent or are cut in the middle of a reply, PgBouncer restarted, crashes of PostgreSQL, a failover,
// a clock that is stepped, an older version beside the present one, a full disk, locks, another isolation level,
// processes that are stopped and killed. Then the faults end, the orders are brought to their end, and everything that
// was ever answered is compared with what the database and the provider say.
//
// A broken promise fails the test. The longest time without an answer, and the share of rejected requests, depend on
// the machine: they are printed, and fail the test only on demand. Environment variables:
//
//	PAWL_FAULT_SECONDS  about how long all campaigns together take (20); under 60, there are few callers, and only those run
//	                    whose fault no other test has and that need no other program
//	PAWL_FAULT_SEED     where the random choices come from; each run prints its own
//	PAWL_FAULT_STRICT   1: figures beyond what the documents say fail the test, too
package campaign
