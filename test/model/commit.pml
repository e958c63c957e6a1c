/* Which commits need not wait for the disk, and why no number of an order comes again.

   Replicas 1 and 2 are asked for the same order, A, by requests that differ. Its steps are the
   ledger's: the admission and the charge commit without waiting for the disk, the last move waits.
   Replica 3 admits order B, whose charge is a provider's: it commits the call with the admission,
   waits for the disk, and calls. Others look on: a caller who reads A, the relay that numbers events.

   The log is in order, so what is durable is always a state that the server once was in. It may reach
   the disk at any moment, and does at a commit that waits. A crash takes the server back to that
   state, the sequence of the numbers too. The replicas need not notice, and go on with what they
   remember, by number: a move compares number and status. The marker is a row of an unlogged table,
   which is empty after a crash. Orders are admitted only while it is there. A replica that finds it
   missing moves the sequence beyond every number that can have been lost, and writes the row again in
   the same commit, which waits for the disk.

   Switches. Each takes one safeguard away:
     NOMARKER       the marker is still there after a crash
     UNCOMPARED     no admission looks for the marker
     UNCOMPAREDCALL the admission with a call does not
     NOSKIP         the sequence is not moved
     EARLYSKIP      the sequence is moved without waiting for the disk
     EARLYANSWER    the last move does not wait for the disk
     EARLY202       a 202 does not wait for the disk
     EARLY409       a conflict is told without waiting for the disk
     BLIND202       a 202 waits for the disk, and does not look whether the order is there
     OTHER202       a 202 looks for the order by its id, whatever number it has
     EARLYREAD      a look at an order under way does not wait for the disk
     EARLYCALL      a call is committed without waiting for the disk
     EARLYEVENT     events are numbered without waiting for the disk
     NAMESLOST      an admission names the order admitted before it without looking whether it is there
     REMEMBERS      a request whose order was lost is not compared with the order that it finds instead */
#define A 1
#define B 2
#define CRASHES 2
#define SKIP 2 /* more numbers than a crash can lose */
#define CHARGING 1
#define RESERVING 2
#define COMPLETED 3

/* What the server shows of each order, and what would be left of it after a crash. No number: it is not there. */
byte number[3], request[3], stage[3], previous[3], last;
byte durableNumber[3], durableRequest[3], durableStage[3], durablePrevious[3], durableLast;
bit marker = 1;

byte crashes;

#define holder(n) (number[A] == (n) -> A : (number[B] == (n) -> B : 0))

inline flush() {
  d_step {
    durableNumber[A] = number[A]; durableRequest[A] = request[A]; durableStage[A] = stage[A]; durablePrevious[A] = previous[A];
    durableNumber[B] = number[B]; durableRequest[B] = request[B]; durableStage[B] = stage[B]; durablePrevious[B] = previous[B];
    durableLast = last
  }
}

inline tell(o, r, s) {
  if
  :: durableNumber[o] > 0 && durableRequest[o] == r && durableStage[o] >= s
  :: else -> printf("violated: what is told is at the disk\n"); assert(false)
  fi
}

/* The log reaches the disk by itself, and the server crashes. */
active proctype server() {
  do
  :: last != durableLast || stage[A] != durableStage[A] || stage[B] != durableStage[B] -> flush()
  :: crashes < CRASHES -> d_step {
       crashes++;
       number[A] = durableNumber[A]; request[A] = durableRequest[A]; stage[A] = durableStage[A]; previous[A] = durablePrevious[A];
       number[B] = durableNumber[B]; request[B] = durableRequest[B]; stage[B] = durableStage[B]; previous[B] = durablePrevious[B];
       last = durableLast;
#ifndef NOMARKER
       marker = 0
#endif
     };
     if
     :: (previous[A] == 0 || holder(previous[A]) != 0) && (previous[B] == 0 || holder(previous[B]) != 0)
     :: else -> printf("violated: no order names one that is lost\n"); assert(false)
     fi
  od
}

/* A replica that misses the marker puts it back. */
inline renumber() {
  atomic {
    if
    :: !marker ->
#ifndef NOSKIP
       last = last + SKIP;
#endif
#ifndef EARLYSKIP
       flush();
#endif
       marker = 1
    :: else
    fi
  }
}

inline insert(o, r, before) {
  last++;
  number[o] = last; request[o] = r; stage[o] = CHARGING;
#ifdef NAMESLOST
  previous[o] = before
#else
  previous[o] = (before != 0 && holder(before) != 0 -> before : 0)
#endif
}

#ifdef UNCOMPARED
#define numbered true
#else
#define numbered marker
#endif

/* A run reads back what it has missed, by its number. If its order is gone, the request starts over, and nothing is kept. */
inline readBack() {
  if
  :: number[A] == mine -> believed = stage[A]
  :: else -> believed = 0; mine = 0;
#ifndef REMEMBERS
     compared = 0
#endif
  fi
}

/* Replicas 1 and 2 drive A, each for a request of its own. */
active [2] proctype replica() {
  byte mine, believed, before;
  bit compared;
  do
  :: believed == 0 && !marker -> renumber()
  :: believed == 0 -> atomic { /* the admission, and the read of what was there before */
       if
       :: number[A] == 0 && numbered -> insert(A, _pid, before); mine = last; before = last; believed = CHARGING; compared = 1
       :: number[A] == 0 && !numbered
       :: number[A] != 0 && request[A] == _pid -> mine = number[A]; believed = stage[A]; compared = 1
       :: number[A] != 0 && request[A] != _pid && !compared ->
#ifndef EARLY409
          flush();
#endif
          tell(A, request[A], CHARGING); break /* a conflict */
#ifdef REMEMBERS
       :: number[A] != 0 && request[A] != _pid && compared -> flush(); tell(A, _pid, stage[A])
#endif
       fi
     }
  :: believed == CHARGING -> atomic {
       if
       :: number[A] == mine && stage[A] == CHARGING && request[A] == _pid -> stage[A] = RESERVING; believed = RESERVING
       :: number[A] == mine && stage[A] == CHARGING && request[A] != _pid || number[B] == mine ->
          printf("violated: a number is that of one order\n"); assert(false)
       :: else -> readBack()
       fi
     }
  :: believed == RESERVING -> atomic {
       if
       :: number[A] == mine && stage[A] == RESERVING ->
          stage[A] = COMPLETED;
#ifndef EARLYANSWER
          flush();
#endif
          if
          :: tell(A, _pid, COMPLETED); believed = COMPLETED
          :: believed = 0 /* the answer of the server was lost */
          fi
       :: else -> readBack()
       fi
     }
  :: believed == CHARGING || believed == RESERVING -> atomic { /* the time of the caller is up: 202 */
#ifndef EARLY202
       flush();
#endif
       if
#if defined(EARLY202) || defined(BLIND202)
       :: tell(A, _pid, CHARGING)
#elif defined(OTHER202)
       :: number[A] != 0 -> tell(A, _pid, CHARGING)
       :: else
#else
       :: number[A] == mine -> tell(A, _pid, CHARGING)
       :: else /* the request starts over */
#endif
       fi
     }
  :: believed == COMPLETED -> tell(A, _pid, COMPLETED); break
  od
}

/* Replica 3 admits B with its call, calls, and commits what came of it. */
active proctype caller() {
  byte mine, before;
again:
  do
  :: !marker -> renumber()
  :: atomic {
#ifdef UNCOMPAREDCALL
       number[B] == 0 ->
#else
       number[B] == 0 && numbered ->
#endif
       insert(B, _pid, before);
#ifndef EARLYCALL
       flush();
#endif
       mine = last; before = last; break
     }
  od;
  tell(B, _pid, CHARGING); /* the provider has the call */
  atomic {
    if
    :: number[B] == mine -> stage[B] = COMPLETED; flush(); tell(B, _pid, COMPLETED)
    :: else -> goto again
    fi
  }
}

/* A caller looks at A. What has ended is at the disk already. */
active proctype reader() {
  do
  :: atomic {
       number[A] != 0 ->
#ifndef EARLYREAD
       if
       :: stage[A] < COMPLETED -> flush()
       :: else
       fi;
#endif
       tell(A, request[A], stage[A])
     }
  od
}

/* The relay gives an event of A its number, and tells it when that has committed. */
active proctype relay() {
  byte told;
  do
  :: atomic {
       number[A] != 0 && stage[A] > told ->
#ifndef EARLYEVENT
       flush();
#endif
       told = stage[A]; tell(A, request[A], told)
     }
  od
}
