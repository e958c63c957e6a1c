/* The machine of fsm/, written by go test ./model -run Generated -update. Do not edit. */

#define PENDING    1
#define CHARGING   2
#define RESERVING  3
#define CONFIRMING 4
#define COMPLETED  5
#define RELEASING  6
#define REFUNDING  7
#define FAILED     8
#define CANCELED   9

#define final(s) ((s) == COMPLETED || (s) == FAILED || (s) == CANCELED)

#define legal(from, to) ( \
  (from) == PENDING && (to) == CHARGING || \
  (from) == PENDING && (to) == CANCELED || \
  (from) == CHARGING && (to) == RESERVING || \
  (from) == CHARGING && (to) == REFUNDING || \
  (from) == CHARGING && (to) == FAILED || \
  (from) == CHARGING && (to) == CANCELED || \
  (from) == RESERVING && (to) == CONFIRMING || \
  (from) == RESERVING && (to) == RELEASING || \
  (from) == RESERVING && (to) == REFUNDING || \
  (from) == CONFIRMING && (to) == COMPLETED || \
  (from) == CONFIRMING && (to) == RELEASING || \
  (from) == RELEASING && (to) == REFUNDING || \
  (from) == REFUNDING && (to) == FAILED || \
  (from) == REFUNDING && (to) == CANCELED || \
  (from) == FAILED && (to) == PENDING)
