/* An order whose charge has two routes: two providers, of which the second is tried after a certain refusal of the
   first, as a new generation with a key of its own. What comes after the charge has no effects here: saga.pml has those.

   Two workers drive the order, as in saga.pml. Calls whose replies are lost may arrive later, or never. A provider may
   take a charge in and answer later, more than once. Somebody may ask once to stop, and a failed order is redriven once,
   under a policy that has the routes in the other order. To have fewer states, there are up to three generations: the
   last one has no next route.

   Switches. Each takes one safeguard away:
     FALLSINDOUBT   a refusal leads to the next route although an earlier call is in doubt
     NOVOID         a new generation does not begin with the undo of the key before
     ANYGENERATION  an answer without a call is taken for the current generation, whichever it is about
     FIRSTUNDOES    the undo is sent to the provider of the first generation
     VOIDSHERE      the key of the generation before is voided at the provider of the current one
     KEEPSROUTE     a redrive keeps the route instead of beginning with the first one
   and these change the question:
     LIES           a charge that was refused may be done all the same, later (and none is answered later)
     CHARGEONLY     ask only whether two charges can live                                      */
#include "machine.pml"

#define NOBODY 255
mtype = { DONE, REFUSED, RETRY, WAITING, UNKNOWN };

/* What a provider knows of the key of a generation. */
typedef Key {
  bit live;    /* charged */
  bit undone;  /* undone, or never to be done */
  bit refused; /* refused, and remembered */
  bit late;    /* a call is on its way that nobody waits for any more */
  bit taken;   /* to be answered later */
  bit told     /* answered later, by live or refused as they were then */
};
#define GENERATIONS 3
Key keys[GENERATIONS]; /* each at the provider of its generation */

/* The row of the order. */
byte status = CHARGING;
byte outcome = FAILED;
byte holder = NOBODY;
byte generation;
bit route, doubt, stop, voided, swapped; /* swapped: the policy has the routes in the other order */
bit tried;                               /* the first route of this policy was refused */
mtype answered;                          /* an answer without a call; 0: none */

/* The provider of each generation, recorded with its calls. */
bit provider[GENERATIONS];

#define mine(expected) (status == expected && holder == _pid)
#define settled(key) (key.undone || key.refused || key.live || key.taken)

#ifdef FIRSTUNDOES
#define undoer(g) provider[0]
#else
#define undoer(g) provider[g]
#endif
#ifdef VOIDSHERE
#define voider(g) provider[(g) + 1]
#else
#define voider(g) provider[g]
#endif
#ifdef FALLSINDOUBT
#define certain (!before || route == 0)
#else
#define certain !before
#endif
#ifdef ANYGENERATION
#define about(g) true
#else
#define about(g) (generation == (g))
#endif

/* A charge comes to its provider. */
inline arrive(key, reply) {
  if
  :: key.undone || key.refused -> reply = REFUSED
  :: key.taken -> reply = WAITING
  :: key.live -> reply = DONE
  :: !settled(key) -> key.live = 1; reply = DONE
  :: !settled(key) -> key.refused = 1; reply = REFUSED
  :: !settled(key) -> reply = REFUSED /* and forgotten */
#ifdef LIES
  :: !settled(key) -> key.late = 1; reply = REFUSED
#else
  :: !settled(key) -> key.taken = 1; reply = WAITING
#endif
  fi;
  key.late = key.late && !settled(key)
}

inline callDo(key) {
  if
  :: atomic { arrive(key, answer) }
  :: atomic { key.late = !settled(key); answer = UNKNOWN }
  :: answer = RETRY
  fi
}

/* The undo of a key comes to a provider. Another one than that of the key finds nothing, which is a success. */
inline takeBack(g, by) {
  if
  :: by == provider[g] -> keys[g].undone = 1; keys[g].live = 0; keys[g].taken = 0; keys[g].late = 0
  :: by != provider[g]
  fi
}

inline callUndo(g, by) {
  if
  :: atomic { takeBack(g, by); answer = DONE }
  :: atomic { takeBack(g, by); answer = UNKNOWN }
  :: answer = UNKNOWN
  fi
}

inline move(to) { assert(legal(status, to)); status = to; doubt = 0; answered = 0 }
inline goBack(to) {
  if :: stop -> outcome = CANCELED :: else -> outcome = FAILED fi;
  move(to)
}

/* A generation begins at a route. */
inline beginAt(number) {
  generation++; route = number; doubt = 0; answered = 0; voided = 0;
  provider[generation] = route ^ swapped
}

/* The charge was refused. */
inline onRefusal() {
  if
  :: !(certain) -> goBack(REFUNDING)
  :: certain && stop -> move(CANCELED)
  :: certain && !stop && route == 0 && generation < GENERATIONS - 1 -> tried = 1; beginAt(1)
  :: certain && !stop && (route == 1 || generation == GENERATIONS - 1) ->
     if
#ifndef CHARGEONLY
     :: route == 1 && !tried -> printf("violated: an order fails only if no route is left\n"); assert(false)
#endif
     :: else
     fi;
     move(FAILED)
  fi
}

proctype worker() {
  byte s;     /* the status as far as this worker knows */
  byte g;     /* and the generation */
  bit before; /* something was in doubt before this call */
  mtype answer;

lost:
  atomic { s = 0; g = 0; before = 0; answer = 0 } /* fewer states */
end:
  atomic { !final(status) && holder != _pid -> holder = _pid }
again:
  atomic {
    if
    :: holder != _pid -> goto lost
    :: else -> s = status; g = generation; before = 0; answer = 0
    fi
  }
  if
#ifndef NOVOID
  :: s == CHARGING && g > 0 && !voided ->
     if
     :: atomic { mine(CHARGING) && stop -> outcome = CANCELED; move(CANCELED) }
     :: else ->
        callUndo(g - 1, voider(g - 1));
        atomic {
          if
          :: !mine(CHARGING) -> goto lost
          :: mine(CHARGING) && answer == DONE -> voided = 1
          :: else
          fi
        }
     fi
  :: s == CHARGING && (g == 0 || voided) ->
#else
  :: s == CHARGING ->
#endif
     atomic { /* a call is committed before it is made */
       if
       :: !mine(CHARGING) -> goto lost
       :: mine(CHARGING) && stop && !doubt -> outcome = CANCELED; move(CANCELED)
       :: mine(CHARGING) && stop && doubt -> outcome = CANCELED; move(REFUNDING)
       :: mine(CHARGING) && !stop && answered != 0 -> answer = answered
       :: mine(CHARGING) && !stop && answered == 0 -> before = doubt; doubt = 1; answer = 0
       fi;
       s = status
     }
     if
     :: s != CHARGING -> skip
     :: s == CHARGING ->
        if
        :: answer == 0 -> callDo(keys[g])
        :: else
        fi;
        atomic {
          if
          :: !mine(CHARGING) -> goto lost
          :: mine(CHARGING) && answer == DONE && !stop -> move(RESERVING)
          :: mine(CHARGING) && answer == DONE && stop -> outcome = CANCELED; move(REFUNDING)
          :: mine(CHARGING) && answer == REFUSED -> onRefusal()
          :: mine(CHARGING) && answer == RETRY -> doubt = before
          :: mine(CHARGING) && (answer == UNKNOWN || answer == WAITING)
          fi
        }
     fi
  :: s == RESERVING -> /* and all that follows */
     atomic {
       if
       :: !mine(RESERVING) -> goto lost
       :: mine(RESERVING) && !stop -> move(CONFIRMING); move(COMPLETED)
       :: mine(RESERVING) -> goBack(REFUNDING)
       fi
     }
  :: s == REFUNDING ->
     callUndo(g, undoer(g));
     atomic {
       if
       :: !mine(REFUNDING) -> goto lost
       :: mine(REFUNDING) && answer == DONE -> move(outcome)
       :: mine(REFUNDING) && answer == UNKNOWN
       fi
     }
  :: final(s) -> goto lost
  fi;
  goto again
}

proctype people() {
end:
  do
  :: atomic { !stop && (status == CHARGING || status == RESERVING) -> stop = 1 }
  :: atomic {
       status == FAILED && !swapped ->
       move(PENDING); move(CHARGING); swapped = 1; tried = 0; holder = NOBODY; outcome = FAILED;
#ifdef KEEPSROUTE
       beginAt(route)
#else
       beginAt(0)
#endif
     }
  od
}

/* The providers: what is late arrives, and what was taken in is answered, more than once. */
inline works(g) {
  if
  :: keys[g].late -> keys[g].late = 0; arrive(keys[g], unheard); unheard = 0
  :: keys[g].taken -> keys[g].taken = 0; keys[g].told = 1; keys[g].live = 1
  :: keys[g].taken -> keys[g].taken = 0; keys[g].told = 1; keys[g].refused = 1
  :: keys[g].told && status == CHARGING && doubt && answered == 0 && about(g) ->
     if :: keys[g].refused -> answered = REFUSED :: else -> answered = DONE fi
  fi
}

proctype providers() {
  mtype unheard;
end:
  do
  :: atomic { works(0) }
  :: atomic { works(1) }
  :: atomic { works(2) }
  od
}

#define all (keys[0].live + keys[1].live + keys[2].live)

/* What must hold at every instant. */
proctype monitor() {
end:
  if
  :: atomic { all > 1 -> printf("violated: never two live charges\n"); assert(false) }
#ifndef CHARGEONLY
  :: atomic {
       status == COMPLETED && !(all == 1 && keys[generation].live) ->
       printf("violated: completed is charged, by the provider of its route\n"); assert(false)
     }
  :: atomic {
       all > 0 && (status == FAILED || status == CANCELED || !keys[generation].live) ->
       printf("violated: nothing of a failed or canceled order, or of a route that it left, is live\n"); assert(false)
     }
  :: atomic { stop && status == COMPLETED -> printf("violated: what was to stop is not completed\n"); assert(false) }
#endif
  fi
}

init { atomic { run worker(); run worker(); run people(); run providers(); run monitor() } }
