/* The feed: which rows of the history a relay gives the next numbers.

   Writers are statements. Each takes the number of its transaction when it writes its first row, which is another order's, and
   comes to the order of the model later, or not at all: then it has a row lock until it commits. So a row may have a lower
   transaction number than the row before it. Two relays look at the same time, as when one was asleep and has lost its lease. A
   look is one statement: it sees the database at one moment, and inserts later.

   A look takes the rows from where the last one ended to the horizon, the oldest transaction that has not ended, and with
   each row those before it in the order that are from above the horizon. These are early: they were committed before that row,
   and are passed over when the horizon comes to them.

   Switches. Each takes one safeguard away:
     PLAIN      the rows below the horizon are taken alone
     NOHORIZON  all rows that are seen are taken, whatever has not ended
     FORGETS    that a row was early is not kept
     BLIND      a relay inserts whatever the other one has inserted since it looked            */
#define WRITERS 4
#define ROOM 5 /* rows count from 1 */

byte next = 1;          /* the next transaction */
byte xid[WRITERS];      /* that of each writer; 0: it has none, or has ended */
byte ended;             /* writers that have */
bit locked;             /* the row of the order */
byte seq;               /* rows of the order that are committed */
byte position[ROOM];    /* their transactions */

byte from = 1, last;    /* where the last look ended, and the last row that has a number */
bit early[ROOM];

proctype writer(byte me) {
  atomic { xid[me] = next; next++ }
  if
  :: atomic { !locked -> locked = 1 }
     atomic { seq++; position[seq] = xid[me]; locked = 0; xid[me] = 0; ended++ }
  :: atomic { xid[me] = 0; ended++ } /* another order was all it wrote, or it failed */
  fi
}

/* A row gets the next number. */
inline give(s) {
  if
  :: s == last + 1
  :: else -> printf("violated: each event once, and in the order of seq\n"); assert(false)
  fi;
  last = s
}

proctype relay() {
  byte to, start, before, s, t, seen, w;
  bit taken[ROOM], all, some;

  do
  :: atomic { /* the snapshot */
       start = from; before = last; seen = seq; all = (ended == WRITERS); to = next;
#ifndef NOHORIZON
       w = 0;
       do
       :: w < WRITERS -> if :: xid[w] > 0 && xid[w] < to -> to = xid[w] :: else fi; w++
       :: else -> break
       od;
#endif
       some = 0; s = 1;
       do
       :: s <= seen ->
          taken[s] = (position[s] >= start && position[s] < to && !early[s]);
#ifndef PLAIN
          if
          :: taken[s] ->
             t = s - 1;
             do
             :: t > 0 && position[t] >= to -> taken[t] = 1; t--
             :: else -> break
             od
          :: else
          fi;
#endif
          some = some || taken[s]; s++
       :: else -> break
       od;
       w = 0; t = 0; s = 0
     }
     atomic { /* the insert */
       if
#ifdef BLIND
       :: some ->
#else
       :: some && before == last ->
#endif
          s = 1;
          do
          :: s <= seen ->
             if
             :: taken[s] -> give(s);
#ifndef FORGETS
                if :: position[s] >= to -> early[s] = 1 :: else fi
#endif
             :: else
             fi;
             s++
          :: else -> break
          od;
          from = to
       :: else
       fi;
       if
       :: all && before == last && last < seq -> printf("violated: no event is left out\n"); assert(false)
       :: all && last == seq -> break
       :: else
       fi;
       s = 1;
       do :: s < ROOM -> taken[s] = 0; s++ :: else -> break od;
       s = 0; to = 0; start = 0; before = 0; seen = 0; all = 0; some = 0
     }
  od
}

init {
  atomic {
    byte n = 0;
    do :: n < WRITERS -> run writer(n); n++ :: else -> break od;
    run relay(); run relay()
  }
}
