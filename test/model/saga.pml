/* An order on its way through charge, reserve and confirm, each done by somebody else.

   Two workers drive it. A lease may end at any moment (pause, crash, partition), so either may
   claim the order whenever the other has it; who lost it does not know and goes on with what it
   read. Compare-and-set on the fence is exactly "I am the one who claimed last": no counter is
   needed, and the number of claims has no bound. A call whose reply is lost may arrive at any
   later time, or never. Somebody may ask once to stop, at any moment, and a failed order is
   redriven once.

   The other side remembers what was done and undone under a key. Whether it remembers a
   refusal is left open: many do not.

   Switches. Each takes one safeguard away:
     NOFENCE        compare-and-set looks at the status only
     EFFECTFIRST    a refund is sent first, the status changed afterwards
     NOTOMB         the other side forgets an undo of a key that it has not seen
     CALLKEY     the key contains the call: the other side sees a new one each time
     ONEKEY         an undo has the key of its do: it is answered with the stored answer
     DOUBTASFAILED  no answer is taken for a refusal
     STOPLOST       the request to stop is read before, not by the compare-and-set itself
     RETRYCLEARS    "this call did nothing" is taken for "nothing was ever done"
     REFUSALCLEARS  a refusal settles also what earlier calls left in doubt
     NOVOID         a new generation does not begin with the undo of the old keys
   and these change the question:
     KEEPS          the other side remembers every refusal
     CHARGEONLY     ask only whether two charges can live; reserve and confirm answer anything
     WALK           print every edge that is taken, and do not ask whether it is legal            */
#include "machine.pml"

#define NOBODY 255
mtype = { DONE, REFUSED, RETRY, UNKNOWN };

/* What the other side knows of a key: of one step in one generation. */
typedef Key {
  byte live;    /* effects that stand; more than one only with CALLKEY */
  bit  undone;  /* undone, or never to be done */
  bit  refused; /* refused, and remembered */
  bit  late     /* a call is on its way that nobody waits for any more */
};
Key charge[2], reserve[2], confirm[2]; /* by generation */

/* The row of the order. */
byte status = PENDING;
byte outcome = FAILED; /* how it ends once it goes back */
byte holder = NOBODY;  /* who claimed last: stands for the fence */
bit  generation, doubt, stop, voided;

#ifdef NOFENCE
#define mine(expected) (status == expected)
#else
#define mine(expected) (status == expected && holder == _pid)
#endif
#ifdef STOPLOST
#define stopping seenStop
#else
#define stopping stop
#endif
#ifdef REFUSALCLEARS
#define others false
#else
#define others before
#endif
#ifdef RETRYCLEARS
#define stillInDoubt 0
#else
#define stillInDoubt before
#endif

/* Another Do would change nothing. Such a call is not kept on its way: fewer states. */
#ifdef CALLKEY
#define settled(key) (key.undone || key.refused)
#else
#define settled(key) (key.undone || key.refused || key.live > 0)
#endif

/* A Do comes to the other side. */
inline arrive(key, reply) {
  if
  :: key.undone || key.refused -> reply = REFUSED
  :: !key.undone && !key.refused && key.live == 0 -> key.live = 1; reply = DONE
  :: !key.undone && !key.refused && key.live == 0 -> key.refused = 1; reply = REFUSED
#ifndef KEEPS
  :: !key.undone && !key.refused && key.live == 0 -> reply = REFUSED
#endif
#ifdef CALLKEY
  :: !key.undone && !key.refused && key.live > 0 -> key.live = 2; reply = DONE
#else
  :: !key.undone && !key.refused && key.live > 0 -> reply = DONE
#endif
  fi;
  key.late = key.late && !settled(key)
}

/* An Undo comes to the other side. */
inline takeBack(key) {
#if defined(ONEKEY)
  skip
#elif defined(NOTOMB)
  key.undone = key.undone || key.live > 0; key.live = 0
#else
  key.undone = 1; key.live = 0
#endif
  ; key.late = key.late && !settled(key)
}

inline callDo(key) {
  if
  :: atomic { arrive(key, answer) }
  :: atomic { key.late = !settled(key); answer = UNKNOWN }
  :: answer = RETRY
  fi
#ifdef DOUBTASFAILED
  ; if :: answer == UNKNOWN -> answer = REFUSED; before = 0 :: else fi
#endif
}

#ifdef CHARGEONLY
inline callLater(key) {
  if :: answer = DONE :: answer = REFUSED :: answer = RETRY :: answer = UNKNOWN fi
}
#else
#define callLater callDo
#endif

inline callUndo(key) {
  if
  :: atomic { takeBack(key); answer = DONE }
  :: atomic { takeBack(key); answer = UNKNOWN }
  :: answer = UNKNOWN
  fi
}

#ifdef WALK
c_decl { static char walked[16][16]; static int from; }
inline move(to) {
  c_code { from = now.status; };
  status = to; doubt = 0;
  c_code { if (!walked[from][now.status]++) printf("walked: %d %d\n", from, now.status); }
}
#else
inline move(to) {
  assert(legal(status, to));
  status = to; doubt = 0
}
#endif

/* The first move back says how the order ends. */
inline goBack(to) {
  if :: stopping -> outcome = CANCELED :: else -> outcome = FAILED fi;
  move(to)
}
inline stopAt(to) { outcome = CANCELED; move(to) }

/* A call is committed before it is made. */
inline begin(state, clean, inDoubt) {
  atomic {
    if
    :: !mine(state) -> goto lost
    :: mine(state) && stopping && !doubt -> stopAt(clean)
    :: mine(state) && stopping && doubt -> stopAt(inDoubt)
    :: mine(state) && !stopping -> before = doubt; doubt = 1
    fi;
    s = status
  }
}

proctype worker() {
  byte s;      /* the status as far as this worker knows */
  bit g;       /* and the generation */
  bit before;  /* something was in doubt before this call */
  mtype answer = DONE;
#ifdef STOPLOST
  bit seenStop;
#endif

end:
lost:
  atomic {
    !final(status) && holder != _pid;
    holder = _pid; s = status; g = generation; before = 0; answer = DONE
  }
  do
  :: atomic {
       s == PENDING ->
       if
       :: !mine(PENDING) -> goto lost
       :: mine(PENDING) && stop -> move(CANCELED)
       :: mine(PENDING) && !stop -> move(CHARGING)
       fi;
       s = status
     }
#ifdef STOPLOST
  :: atomic { !seenStop && stop && holder == _pid -> seenStop = 1 }
#endif
#ifdef NOVOID
  :: s == CHARGING ->
#else
  :: s == CHARGING && g == 1 && !voided ->
     if
     :: atomic { mine(CHARGING) && stopping -> stopAt(CANCELED); s = status }
     :: else ->
        callUndo(charge[0]);
        atomic {
          if
          :: !mine(CHARGING) -> goto lost
          :: mine(CHARGING) && answer == DONE -> voided = 1
          :: else
          fi;
          answer = DONE
        }
     fi
  :: s == CHARGING && (g == 0 || voided) ->
#endif
     begin(CHARGING, CANCELED, REFUNDING);
     if
     :: s != CHARGING -> skip
     :: s == CHARGING ->
        callDo(charge[g]);
        atomic {
          if
          :: !mine(CHARGING) -> goto lost
          :: mine(CHARGING) && answer == DONE && !stopping -> move(RESERVING)
          :: mine(CHARGING) && answer == DONE && stopping -> stopAt(REFUNDING)
          :: mine(CHARGING) && answer == REFUSED && others -> goBack(REFUNDING)
          :: mine(CHARGING) && answer == REFUSED && !others && !stopping -> move(FAILED)
          :: mine(CHARGING) && answer == REFUSED && !others && stopping -> move(CANCELED)
          :: mine(CHARGING) && answer == RETRY -> doubt = stillInDoubt
          :: mine(CHARGING) && answer == UNKNOWN
          fi;
          s = status; before = 0; answer = DONE
        }
     fi
  :: s == RESERVING ->
     begin(RESERVING, REFUNDING, RELEASING);
     if
     :: s != RESERVING -> skip
     :: s == RESERVING ->
        callLater(reserve[g]);
#ifdef EFFECTFIRST
        if :: answer == REFUSED -> takeBack(charge[g]) :: else fi;
#endif
        atomic {
          if
          :: !mine(RESERVING) -> goto lost
          :: mine(RESERVING) && answer == DONE && !stopping -> move(CONFIRMING)
          :: mine(RESERVING) && answer == DONE && stopping -> stopAt(RELEASING)
          :: mine(RESERVING) && answer == REFUSED && others -> goBack(RELEASING)
          :: mine(RESERVING) && answer == REFUSED && !others -> goBack(REFUNDING)
          :: mine(RESERVING) && answer == RETRY -> doubt = stillInDoubt
          :: mine(RESERVING) && answer == UNKNOWN
          fi;
          s = status; before = 0; answer = DONE
        }
     fi
  :: s == CONFIRMING ->
     atomic {
       if
       :: !mine(CONFIRMING) -> goto lost
       :: mine(CONFIRMING) && stopping && !doubt -> stopAt(RELEASING)
       :: mine(CONFIRMING) && (!stopping || doubt) -> before = doubt; doubt = 1
       fi;
       s = status
     }
     if
     :: s != CONFIRMING -> skip
     :: s == CONFIRMING ->
        callLater(confirm[g]);
        atomic {
          if
          :: !mine(CONFIRMING) -> goto lost
          :: mine(CONFIRMING) && answer == DONE -> move(COMPLETED)
          :: mine(CONFIRMING) && answer == REFUSED && others /* held: there is no undo, a person decides */
          :: mine(CONFIRMING) && answer == REFUSED && !others -> goBack(RELEASING)
          :: mine(CONFIRMING) && answer == RETRY -> doubt = stillInDoubt
          :: mine(CONFIRMING) && answer == UNKNOWN
          fi;
          s = status; before = 0; answer = DONE
        }
     fi
  :: s == RELEASING ->
#ifdef CHARGEONLY
     if :: answer = DONE :: answer = UNKNOWN fi;
#else
     callUndo(reserve[g]);
#endif
     atomic {
       if
       :: !mine(RELEASING) -> goto lost
       :: mine(RELEASING) && answer == DONE -> move(REFUNDING)
       :: mine(RELEASING) && answer == UNKNOWN
       fi;
       s = status; answer = DONE
     }
  :: s == REFUNDING ->
     callUndo(charge[g]);
     atomic {
       if
       :: !mine(REFUNDING) -> goto lost
       :: mine(REFUNDING) && answer == DONE -> move(outcome)
       :: mine(REFUNDING) && answer == UNKNOWN
       fi;
       s = status; answer = DONE
     }
  :: atomic { final(s) -> goto lost }
  od
}

/* People: a request to stop is answered yes only while the order can still be stopped. */
proctype people() {
end:
  do
  :: atomic {
       !stop && (status == PENDING || status == CHARGING || status == RESERVING || status == CONFIRMING && !doubt) ->
       stop = 1
     }
  :: atomic {
       status == FAILED && generation == 0 ->
       move(PENDING); generation = 1; holder = NOBODY; outcome = FAILED
     }
  od
}

/* The network delivers what nobody waits for any more. */
proctype network() {
  mtype unheard;
end:
  do
  :: atomic { charge[0].late -> charge[0].late = 0; arrive(charge[0], unheard); unheard = 0 }
  :: atomic { charge[1].late -> charge[1].late = 0; arrive(charge[1], unheard); unheard = 0 }
  :: atomic { reserve[0].late -> reserve[0].late = 0; arrive(reserve[0], unheard); unheard = 0 }
  :: atomic { reserve[1].late -> reserve[1].late = 0; arrive(reserve[1], unheard); unheard = 0 }
  :: atomic { confirm[0].late -> confirm[0].late = 0; arrive(confirm[0], unheard); unheard = 0 }
  :: atomic { confirm[1].late -> confirm[1].late = 0; arrive(confirm[1], unheard); unheard = 0 }
  od
}

#define stands(key, n) (key[0].live + key[1].live == n && key[generation].live == n)
#define over(n) (generation > n || status == FAILED || status == CANCELED)
#define none(n) (charge[n].live == 0 && reserve[n].live == 0 && confirm[n].live == 0)

/* What must hold at every instant. It moves only when something does not. */
proctype monitor() {
end:
  if
  :: atomic { charge[0].live + charge[1].live > 1 -> printf("violated: never two live charges\n"); assert(false) }
#ifndef CHARGEONLY
  :: atomic { reserve[0].live + reserve[1].live > 1 -> printf("violated: never two live reservations\n"); assert(false) }
  :: atomic {
       status == COMPLETED && !(stands(charge, 1) && stands(reserve, 1) && stands(confirm, 1)) ->
       printf("violated: completed is charged, reserved and confirmed\n"); assert(false)
     }
  :: atomic {
       status == CONFIRMING && !(stands(charge, 1) && stands(reserve, 1)) ->
       printf("violated: confirming is charged and reserved\n"); assert(false)
     }
  :: atomic {
       over(0) && !none(0) || generation == 1 && over(1) && !none(1) ->
       printf("violated: nothing of a failed or canceled order is live, then or later\n"); assert(false)
     }
  :: atomic { stop && status == COMPLETED -> printf("violated: what was to stop is not completed\n"); assert(false) }
#endif
  fi
}

init { atomic { run worker(); run worker(); run people(); run network(); run monitor() } }
