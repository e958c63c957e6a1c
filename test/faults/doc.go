// Package faults starts the real program as operators do, takes away from it whatever can go, and proves the books
// afterwards: processes are killed, stopped and asked to end, PostgreSQL is killed and stopped, connections are cut
// between any two statements, callers hang up in the middle of a byte stream, wall clocks are set.
//
// What callers were told is written down outside the service, and compared with what the database says: an answer that
// was given must be true for ever, an order that was stored must end although no caller asks again, and
// no effect may be there twice. Each test logs how often its fault bit.
//
// Two environment variables change a run:
//
//	PAWL_FAULT_ROUNDS  how many times a test that repeats a fault does so (default: enough for some seconds);
//	                   where it is set, a matrix also has each executor with one replica and with two, every fault at every step
//	PAWL_FAULT_SEED    the random choices of an earlier run, which every test logs
package faults
