/* A step that was answered 202 and is completed by a callback, which may come before the 202 is
   recorded, while it is, after it, and twice.

   Two replicas drive the order; each may lose its lease or crash at any point, once in all. A
   callback locks the order, stores its answer, and wakes the order if it waits: one commit. The
   replica that drives lets the order wait in one statement and looks again in a second one; who
   crashed in between is made up for by the sweep. The time-out of the wait is left out on
   purpose: whatever would be found by it alone was lost.

   A statement sees what was committed when it began. Of a row that it waited for it sees the
   newest version, but only where the older one fitted its condition too.

   Switches. Each takes one safeguard away:
     NOSECONDLOOK   the statement that lets the order wait looks itself, and no second one does
     NOTOKENFIRST   the token is stored after the call: until then a callback is answered 404
     NOSWEEP        nobody looks for orders whose replica crashed before its second look
     ONESTATEMENT   the callback locks, stores and wakes in one statement
     SKIPLOCKED     the second look passes over a row that is locked, by a second callback say
     ONLYCALLBACK   second look and sweep are for orders held for a callback, not for those that
                    are held because the call had no answer
     NOTSINGLEUSE   a second callback replaces the answer of the first
   and this is another way to the same end:
     RAISESEQ       a callback that stores an answer raises seq on the order in any case, so the
                    statement that lets it wait fails and is made anew: no second look, no sweep  */
#include "machine.pml"

#define NOBODY 255
mtype = { NONE, CALLBACK, ATTENTION, ACCEPTED, SILENCE };

/* The row of the order, and who has it locked. */
byte status = CHARGING;
byte holder = NOBODY; /* who claimed last: stands for the fence */
mtype hold = NONE;
bit raised;           /* seq was raised since the holder read the row */
byte locked = NOBODY;

bit token;        /* stored: callbacks are known */
byte answer;      /* stored with the callback that brought it; 0: none */
byte first;       /* what the first callback was told is kept */
bit consumed, called, crashed;

#define mine (holder == _pid)
#define waits (hold == CALLBACK || hold == ATTENTION)
#ifdef ONLYCALLBACK
#define found (hold == CALLBACK)
#else
#define found waits
#endif

/* The replica takes up an order that waits for an answer that is there. */
inline wake() { holder = _pid; hold = NONE; raised = 0 }

inline consume() {
  atomic {
    locked == NOBODY;
    if
    :: mine && hold == NONE && status == CHARGING ->
       assert(legal(status, RESERVING));
       if
       :: consumed || answer != first -> printf("violated: the first answer is used, once\n"); assert(false)
       :: !consumed && answer == first
       fi;
       status = RESERVING; consumed = 1
    :: else
    fi
  }
}

proctype replica() {
  mtype reply = NONE;
#ifdef NOSECONDLOOK
  bit seen;
#endif

end:
idle:
  atomic {
    status == CHARGING && hold == NONE && !mine && locked == NOBODY ->
    holder = _pid; raised = 0; reply = NONE
  }
drive:
  /* An answer that is there is used instead of calling again. */
  if
  :: answer != 0 -> consume(); goto idle
  :: answer == 0
  fi;
  atomic { /* the call */
    locked == NOBODY;
    if
    :: !mine || hold != NONE || status != CHARGING -> goto idle
    :: mine && hold == NONE && status == CHARGING && raised -> raised = 0; goto drive
    :: mine && hold == NONE && status == CHARGING && !raised
    fi;
#ifndef NOTOKENFIRST
    token = 1
#endif
  }
  atomic { /* the call */
    called = 1;
    if :: reply = ACCEPTED :: reply = SILENCE fi
  }
  if :: atomic { !crashed -> crashed = 1; holder = NOBODY; goto idle } :: skip fi;
#ifdef NOSECONDLOOK
  seen = answer != 0;
#endif
  atomic { /* the order is left to wait */
    locked == NOBODY;
    if
    :: !mine || hold != NONE || status != CHARGING -> goto idle
#ifdef RAISESEQ
    :: mine && hold == NONE && status == CHARGING && raised -> raised = 0; goto drive
    :: mine && hold == NONE && status == CHARGING && !raised ->
#elif defined(NOSECONDLOOK)
    :: mine && hold == NONE && status == CHARGING && seen -> goto drive
    :: mine && hold == NONE && status == CHARGING && !seen ->
#else
    :: mine && hold == NONE && status == CHARGING ->
#endif
       if :: reply == ACCEPTED -> hold = CALLBACK :: reply == SILENCE -> hold = ATTENTION fi;
       token = 1
    fi
  }
#if !defined(RAISESEQ) && !defined(NOSECONDLOOK)
  if :: atomic { !crashed -> crashed = 1; goto idle } :: skip fi;
  atomic { /* the second look */
#ifdef SKIPLOCKED
    if :: locked != NOBODY -> goto idle :: locked == NOBODY fi;
#else
    locked == NOBODY;
#endif
    if
    :: answer != 0 && found -> wake(); goto drive
    :: answer == 0 || !found
    fi
  }
#endif
  goto idle
}

/* A callback, taken by any replica. */
proctype callback(byte what) {
#ifdef ONESTATEMENT
  mtype was;
#endif
end:
  called;
  atomic {
    if
    :: !token -> goto unknown
    :: token
    fi;
#ifdef ONESTATEMENT
    was = hold /* what the statement sees of the row, however long it waits for it */
#endif
  }
  atomic { locked == NOBODY -> locked = _pid }
  atomic { /* commit */
    locked = NOBODY;
    if
    :: answer != 0 ->
#ifdef NOTSINGLEUSE
       answer = what
#else
       skip
#endif
    :: answer == 0 ->
       answer = what; first = what;
       if
#ifdef ONESTATEMENT
       :: waits && was != NONE -> wake()
#else
       :: waits -> wake()
#endif
       :: else -> raised = 1
       fi
    fi
  }
  if :: atomic { !crashed -> crashed = 1; if :: mine -> holder = NOBODY :: else fi; goto gone } :: skip fi;
  if :: mine -> consume() :: else fi;
gone:
  skip;
unknown:
  skip
}

#if !defined(RAISESEQ) && !defined(NOSWEEP)
proctype sweep() {
end:
  do
  :: atomic {
       crashed && answer != 0 && locked == NOBODY && found && status == CHARGING ->
       wake()
     }
     consume()
  od
}
#endif

/* When nothing moves any more, an order that was answered is not waiting. */
proctype monitor() {
end:
  timeout;
  if
  :: called && !consumed ->
     printf("violated: an answered order does not wait for its time-out\n"); assert(false)
  :: else
  fi
}

init {
  atomic {
    run replica(); run replica(); run callback(1); run callback(2);
#if !defined(RAISESEQ) && !defined(NOSWEEP)
    run sweep();
#endif
    run monitor()
  }
}
