/* Who drives an order, when replies of the database get lost.

   Two replicas admit the order, claim it from each other (a lease may end at any moment) and,
   while they drive it, commit calls: writes that keep the status. The reply of any statement
   may be lost, and a statement whose reply is lost may have been executed, may be executed
   later, when its replica has long gone on, or never. Then the row is read back. Once, somebody
   asks to stop, which raises seq and leaves the fence.

   Switches. Each takes one safeguard away:
     NOOWNER    after a lost reply the fence alone says whose claim or admission it was
     NOFENCE    neither a write nor the row read back is compared by fence
     NOSEQ      a write is not compared by seq: sent again, it is done again
     SEQTELLS   the row read back shows the seq that was asked for, so the call is taken for
                committed, whoever raised it; without the switch it is begun again
     BLIND      after a lost reply a claim is taken for done                                      */
#define NOBODY 255
#define CLAIMS 3   /* the highest fence */
#define ATTEMPTS 2 /* by each replica */
mtype = { NOTHING, ADMIT, CLAIM, ATTEMPT };

/* The row of the order. */
byte owner = NOBODY, fence, seq;
bit stopRequested;

/* What each replica believes: the fence it drives with, 0 when it does not. */
byte drives[2];
/* How often each call of each replica was committed. */
byte committed[4];

/* A statement that is still on its way though nobody waits for it, one for each replica. */
mtype later[2];
byte laterFence[2], laterSeq[2], laterNumber[2];

/* The server executes a statement: hit says whether it found its row. */
inline execute(kind, who, f, q, number) {
  if
  :: kind == ADMIT && fence == 0 -> fence = 1; seq = 1; owner = who; hit = 1
  :: kind == ADMIT && fence > 0 -> hit = 0
  :: kind == CLAIM && fence < CLAIMS -> fence++; seq++; owner = who; hit = 1
  :: kind == CLAIM -> hit = 0 /* it is not due, or not any more */
  :: kind == ATTEMPT ->
     if
#ifdef NOFENCE
     :: seq == q ->
#elif defined(NOSEQ)
     :: fence == f ->
#else
     :: fence == f && seq == q ->
#endif
        if
        :: owner != who -> printf("violated: who writes owns the order\n"); assert(false)
        :: owner == who
        fi;
        seq++; committed[who * ATTEMPTS + number]++; hit = 1
     :: else -> hit = 0
     fi
  fi
}

inline send(kind, f, q, number) {
  atomic {
    if
    :: execute(kind, me, f, q, number); known = 1;
       if :: hit -> seenFence = fence; seenSeq = seq :: !hit fi
    :: execute(kind, me, f, q, number); known = 0
    :: later[me] == NOTHING ->
       later[me] = kind; laterFence[me] = f; laterSeq[me] = q; laterNumber[me] = number; known = 0
    :: known = 0
    fi
  }
}

#ifdef NOOWNER
#define ownedByMe true
#else
#define ownedByMe (owner == me)
#endif
#ifdef NOFENCE
#define sameFence true
#else
#define sameFence (fence == drives[me])
#endif

proctype replica(byte me) {
  byte asked, seenFence, seenSeq, number;
  bit hit, known;

end:
  do
  :: atomic { drives[me] == 0 && fence == 0 -> asked = 1 }
     send(ADMIT, 0, 0, 0);
     goto taken
  :: atomic { drives[me] == 0 && fence > 0 && fence < CLAIMS -> asked = fence + 1 }
     send(CLAIM, 0, 0, 0);
taken:
     atomic {
       if
       :: known && hit -> drives[me] = seenFence
       :: known && !hit
#ifdef BLIND
       :: !known -> drives[me] = asked; seenSeq = seq
#else
       :: !known && ownedByMe && fence == asked -> drives[me] = fence; seenSeq = seq
       :: !known && !(ownedByMe && fence == asked)
#endif
       fi;
       asked = 0; seenFence = 0; hit = 0; known = 0
     }
  :: drives[me] > 0 && number < ATTEMPTS ->
     send(ATTEMPT, drives[me], seenSeq, number);
     atomic {
       if
       :: known && hit -> goto call
       :: known && !hit
       :: !known
       fi;
       /* Read back. */
       if
       :: !sameFence -> drives[me] = 0; seenSeq = 0; number++
#ifdef SEQTELLS
       :: sameFence && !known && seq == seenSeq + 1 -> seenSeq = seq; goto call
#endif
       :: sameFence && seq == seenSeq /* as it was left: the same call is sent again */
       :: sameFence && seq != seenSeq -> seenSeq = seq; number++ /* it has gone on: the next one */
       fi;
       seenFence = 0; hit = 0; known = 0;
       goto again
     }
call:
     atomic {
       if
       :: committed[me * ATTEMPTS + number] == 0 ->
          printf("violated: no call that was not committed before\n"); assert(false)
       :: else
       fi;
       number++; seenFence = 0; hit = 0; known = 0
     }
again:
     skip
  :: drives[me] > 0 && number == ATTEMPTS -> break
  od
}

proctype server() {
  bit hit;
end:
  do
  :: atomic {
       later[0] != NOTHING -> execute(later[0], 0, laterFence[0], laterSeq[0], laterNumber[0]);
       later[0] = NOTHING; laterFence[0] = 0; laterSeq[0] = 0; laterNumber[0] = 0; hit = 0
     }
  :: atomic {
       later[1] != NOTHING -> execute(later[1], 1, laterFence[1], laterSeq[1], laterNumber[1]);
       later[1] = NOTHING; laterFence[1] = 0; laterSeq[1] = 0; laterNumber[1] = 0; hit = 0
     }
  od
}

proctype people() {
end:
  atomic { fence > 0 && !stopRequested -> stopRequested = 1; seq++ }
}

proctype monitor() {
end:
  if
  :: atomic {
       drives[0] > 0 && drives[0] == drives[1] ->
       printf("violated: one fence, one driver\n"); assert(false)
     }
  :: atomic {
       committed[0] > 1 || committed[1] > 1 || committed[2] > 1 || committed[3] > 1 ->
       printf("violated: a call is committed once\n"); assert(false)
     }
  fi
}

init {
  atomic {
    later[0] = NOTHING; later[1] = NOTHING;
    run replica(0); run replica(1); run server(); run people(); run monitor()
  }
}
