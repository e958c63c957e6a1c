/* Which commits need not wait for the disk.

   The orders 1 and 2 have ledger steps only. One replica drives them, alone or in one batch: the
   admission and the charge commit without waiting for the disk, the last move waits. The charge of
   order 3 is a provider's: its replica commits the call, waits for the disk, and calls. Everybody
   else reads: a caller who looks, a caller whose time is up (202), the relay that numbers events.

   The log is in order, so what is durable is always a state that the server once was in: the log may
   reach the disk at any moment, and does at a commit that waits. A crash takes the server back to that
   state, its numbers too: order numbers come again. The replicas need not notice (a pooler may stand
   between) and go on with what they remember.

   Switches. Each takes one safeguard away:
     NOID        no relaxed move compares the order id
     NOIDLAST    the last move does not compare it
     EARLYANSWER the last move does not wait for the disk
     EARLY202    a 202 does not wait for the disk
     BLIND202    a 202 waits for the disk, and does not look whether the order is there
     EARLYREAD   a look at an order under way does not wait for the disk
     EARLYCALL   a call is committed without waiting for the disk
     EARLYEVENT  events are numbered without waiting for the disk
     NAMESLOST   an admission names the order admitted before it without looking whether that is there */
#define ORDERS 3
#define CRASHES 2
#define CHARGING 1
#define RESERVING 2
#define COMPLETED 3
#define remote(o) ((o) == 3)

/* What the server shows, by number from 1 on, and what would be left of it after a crash. */
byte id[4], stage[4], previous[4], last;
byte durableId[4], durableStage[4], durablePrevious[4], durableLast;

byte crashes, lastAdmitted; /* the number that replica 1 admitted last */

#define atDisk(o, s) ((durableId[1] == (o) && durableStage[1] >= (s)) || (durableId[2] == (o) && durableStage[2] >= (s)) || \
                      (durableId[3] == (o) && durableStage[3] >= (s)))
#define numberOf(o) (id[1] == (o) -> 1 : (id[2] == (o) -> 2 : (id[3] == (o) -> 3 : 0)))

inline flush() {
  d_step {
    durableId[1] = id[1]; durableId[2] = id[2]; durableId[3] = id[3];
    durableStage[1] = stage[1]; durableStage[2] = stage[2]; durableStage[3] = stage[3];
    durablePrevious[1] = previous[1]; durablePrevious[2] = previous[2]; durablePrevious[3] = previous[3];
    durableLast = last
  }
}

inline tell(o, s) {
  if
  :: atDisk(o, s)
  :: else -> printf("violated: what is told is at the disk\n"); assert(false)
  fi
}

/* The log reaches the disk by itself, and the server crashes. */
active proctype server() {
  do
  :: last != durableLast || stage[1] != durableStage[1] || stage[2] != durableStage[2] || stage[3] != durableStage[3] -> flush()
  :: crashes < CRASHES -> d_step {
       crashes++;
       id[1] = durableId[1]; id[2] = durableId[2]; id[3] = durableId[3];
       stage[1] = durableStage[1]; stage[2] = durableStage[2]; stage[3] = durableStage[3];
       previous[1] = durablePrevious[1]; previous[2] = durablePrevious[2]; previous[3] = durablePrevious[3];
       last = durableLast
     };
     if /* each number that an order at the disk names is an order's */
     :: (previous[1] == 0 || id[previous[1]] != 0) && (previous[2] == 0 || id[previous[2]] != 0) && (previous[3] == 0 || id[previous[3]] != 0)
     :: else -> printf("violated: no order names one that is lost\n"); assert(false)
     fi
  od
}

inline insert(o, names) {
  last++;
  id[last] = o; stage[last] = CHARGING;
#ifdef NAMESLOST
  previous[last] = names
#else
  if
  :: names > 0 && names < last && id[names] != 0 -> previous[last] = names
  :: else -> previous[last] = 0
  fi
#endif
}

#ifdef NOID
#define sameId(n, o) true
#else
#define sameId(n, o) (id[n] == (o))
#endif

/* Replica 1 admits an order, or reads back how far it is. */
inline admit(o) {
  atomic {
    if
    :: numberOf(o) == 0 -> insert(o, lastAdmitted); number[o] = last; believed[o] = CHARGING; lastAdmitted = last
    :: else -> number[o] = numberOf(o); believed[o] = stage[number[o]]
    fi
  }
}

/* A ledger's charge of the row with a number. */
inline charge(n) {
  if
  :: remote(id[n]) -> printf("violated: the ledger charges no order of a provider\n"); assert(false)
  :: else -> stage[n] = RESERVING
  fi
}

/* The charge of one order. One that misses reads back. */
inline chargeOne(o) {
  atomic {
    if
    :: stage[number[o]] == CHARGING && sameId(number[o], o) -> charge(number[o]); believed[o] = RESERVING
    :: else -> believed[o] = 0
    fi
  }
}

/* The last move of one order. It waits for the disk, so others see it when it is there. Its answer may be lost. */
inline completeOne(o) {
  atomic {
    if
#if defined(NOIDLAST) || defined(NOID)
    :: stage[number[o]] == RESERVING ->
#else
    :: stage[number[o]] == RESERVING && id[number[o]] == o ->
#endif
       stage[number[o]] = COMPLETED;
#ifndef EARLYANSWER
       flush();
#endif
       if
       :: tell(o, COMPLETED); believed[o] = COMPLETED
       :: believed[o] = 0
       fi
    :: else -> believed[o] = 0
    fi
  }
}

/* The charge of a batch: the rows with its pairs of number and id. */
inline chargeBoth() {
  atomic {
    chargeOne(1);
    chargeOne(2)
  }
}

/* The last move of a batch, which is one commit. */
inline completeBoth() {
  atomic {
    completeOne(1);
    completeOne(2)
  }
}

/* The time of a caller is up: the order is accepted, if it is there and stays. */
inline accepted(o) {
  atomic {
#ifdef EARLY202
    tell(o, CHARGING)
#elif defined(BLIND202)
    flush(); tell(o, CHARGING)
#else
    flush();
    if
    :: numberOf(o) > 0 -> tell(o, CHARGING)
    :: else /* admit it again */
    fi
#endif
  }
}

active proctype replica1() {
  byte number[4], believed[4];
  do
  :: believed[1] == 0 -> admit(1)
  :: believed[2] == 0 -> admit(2)
  :: believed[1] == CHARGING -> chargeOne(1)
  :: believed[2] == CHARGING -> chargeOne(2)
  :: believed[1] == CHARGING && believed[2] == CHARGING -> chargeBoth()
  :: believed[1] == RESERVING -> completeOne(1)
  :: believed[2] == RESERVING -> completeOne(2)
  :: believed[1] == RESERVING && believed[2] == RESERVING -> completeBoth()
  :: believed[1] > 0 && believed[1] < COMPLETED -> accepted(1)
  :: believed[1] == COMPLETED && believed[2] == COMPLETED -> break
  od
}

/* Replica 2 admits order 3 with its call, calls, and has what came of it committed. */
active proctype replica2() {
  byte number;
again:
  atomic {
    if
    :: numberOf(3) == 0 -> insert(3, 0)
    :: else
    fi;
    number = numberOf(3);
#ifndef EARLYCALL
    flush()
#endif
  };
  tell(3, CHARGING); /* the provider has it */
  atomic {
    if
    :: stage[number] == CHARGING && sameId(number, 3) -> stage[number] = COMPLETED; flush(); tell(3, COMPLETED)
    :: stage[number] == COMPLETED && id[number] == 3
    :: else -> goto again
    fi
  }
}

/* A caller looks at an order. What has ended is at the disk already. */
active proctype reader() {
  byte o = 1, n;
  do
  :: atomic {
       n = numberOf(o);
       if
       :: n == 0
       :: n > 0 && stage[n] == COMPLETED -> tell(o, COMPLETED)
       :: n > 0 && stage[n] < COMPLETED ->
#ifndef EARLYREAD
          flush();
#endif
          tell(o, stage[n])
       fi; n = 0
     }
  od
}

/* The relay gives an event its number, and tells it when that has committed. */
active proctype relay() {
  byte n, told;
  do
  :: atomic {
       n = numberOf(2);
       if
       :: n > 0 && stage[n] > told ->
#ifndef EARLYEVENT
          flush();
#endif
          told = stage[n]; tell(2, told)
       :: else
       fi; n = 0
     }
  od
}
