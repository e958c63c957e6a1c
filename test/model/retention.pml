/* How long a key is good for: what is done while a charge is in doubt, or is to be undone, and
   when it is too late to send its key again.

   Time goes in periods. The other side forgets a key two periods after it was last used, at the
   soonest; the charge itself stays, and is known by the other side's own name for it. A call
   that is on its way arrives in the period it was sent in or the next one, or never: that is the
   margin. So a key may be sent in the period in which it was first sent, and not any more in the
   next one. Where the charge has been made, the order stays in RESERVING as long as it likes.

   One driver is enough here: one that lost its lease is a call that is late. People pause,
   resume, retry and cancel at any moment, also during a call, and say what became of a charge,
   or of its undoing, when it is held in doubt and nothing is on its way any more: the truth. The
   other side can be asked after a key, or not; who can be asked remembers refusals as long as
   the key. Asked after a key it has forgotten it may find the charge, or not. It says what it
   calls a charge, or does not; a person may.

   An undo names what it takes back, where that is known when the first one is sent; it says the
   same on every call.

   Switches. Each takes one safeguard away:
     SENDSOLD       a forgotten key is sent again
     UNDOESOLD      a charge without a name is undone by a forgotten key
     DOUBTAGE       only the doubt has an age: that of a key whose charge was made, or that a
                    person spoke about, is not asked for when it is undone
     LATENAME       an undo names what has become known since the first one was sent
     NOMARGIN       a key is sent until the other side may forget it
     UNSEENCLEARS   "not seen" of a look-up is taken for "never done"
     UNSEENSENDS    after "not seen" a key is sent, however old
     PAUSECLEARS    what is paused is not in doubt any more
     PAUSEYOUNG     a pause does not count for the age of a doubt
     RETRYYOUNG     a retry by a person begins the doubt anew
   and this one changes the question:
     KEEPSDONE      a key is remembered as long as what was done under it stands */
#include "machine.pml"

mtype = { NOTHING, DONE, REFUSED, RETRY, UNKNOWN, UNSEEN };   /* answers, and what is known of a key */
mtype = { FREE, TRY, PAUSED, ATTENTION, UNCLEAR };            /* holds; UNCLEAR is outcome_unknown */
mtype = { NO, PAUSE, CANCEL };                                /* requests to stop */
mtype = { NAMED, NAMELESS };                                  /* undos */

/* The other side. */
byte live;          /* charges that stand */
mtype key = NOTHING;/* DONE; REFUSED: also undone */
byte keyAge;        /* in periods since it was first seen */
byte late;          /* a call on its way: 1 sent in this period, 2 in the one before */
bit looks;          /* can be asked */
bit names;          /* says what it calls a charge */

/* The row of the order, and what is there without a call. */
byte status = CHARGING, outcome = FAILED;
mtype hold = FREE, stop = NO;
bit doubt, named, sent, calling;
mtype body = NO;        /* of the undo, once the first one was sent: NAMED, or NAMELESS */
byte doubtAge, sentAge; /* in periods, up to 2; of the doubt, and of the first call */
mtype told = NOTHING;       /* a person's or a callback's word about the charge */
mtype toldUndo = NOTHING;   /* and about its undoing */
bit person;

#ifdef NOMARGIN
#define LIMIT 2
#else
#define LIMIT 1
#endif
#define old (doubt && doubtAge >= LIMIT)
#ifdef SENDSOLD
#define mayNotSend false
#else
#define mayNotSend old
#endif
#if defined(UNDOESOLD)
#define mayNotUndo false
#elif defined(DOUBTAGE)
#define mayNotUndo old
#else
#define mayNotUndo (old || sent && sentAge >= LIMIT)
#endif
#ifdef LATENAME
#define byName named
#else
#define byName (body == NAMED || body == NO && named)
#endif

inline arrive(reply) {
  if
  :: key == REFUSED -> reply = REFUSED
  :: key == DONE -> reply = DONE
  :: key == NOTHING -> key = DONE; keyAge = 0; live++; reply = DONE
  :: key == NOTHING -> key = REFUSED; keyAge = 0; reply = REFUSED
  :: key == NOTHING && !looks -> reply = REFUSED /* and does not remember it */
  fi
}

/* Nothing to take back is a success. */
inline takeBack() {
  if
  :: key == DONE || body == NAMED -> live = 0
  :: else
  fi;
  if :: key != REFUSED -> key = REFUSED; keyAge = 0 :: else fi
}

inline begins() { if :: !doubt -> doubt = 1; doubtAge = 0 :: else fi }
inline settled() { doubt = 0; doubtAge = 0 }
inline move(to) { assert(legal(status, to)); status = to }
inline ends(to) { move(to); settled() }
inline goBack() {
  outcome = (stop == CANCEL -> CANCELED : FAILED);
  move(REFUNDING)
}
inline waits(lookOnly) {
  if
  :: stop == CANCEL && !lookOnly && status == CHARGING -> hold = FREE
  :: !(stop == CANCEL && !lookOnly && status == CHARGING) -> hold = TRY
  :: !(stop == CANCEL && !lookOnly && status == CHARGING) -> hold = ATTENTION /* retries are spent */
  fi
}

proctype driver() {
  mtype reply = NOTHING;
  bit before, lookOnly, byPerson;
  bit looking, unseen; /* a look-up is a call of its own; what it said about the next one */

end:
  do
  :: atomic { hold == FREE && !final(status) && stop == PAUSE ->
       hold = PAUSED; stop = NO
#ifdef PAUSECLEARS
       ; settled()
#endif
     }
  :: atomic { hold == FREE && status == CHARGING && stop == CANCEL && !mayNotSend && doubt ->
       goBack()
     }
  :: atomic { hold == FREE && status == CHARGING && stop == CANCEL && !doubt -> ends(CANCELED) }
  :: atomic { hold == FREE && status == CHARGING && stop != PAUSE && !(stop == CANCEL && !mayNotSend) ->
       before = doubt; lookOnly = mayNotSend; looking = looks && doubt && !unseen; unseen = 0;
       if
       :: doubt && told != NOTHING -> reply = told; byPerson = person; told = NOTHING; person = 0; goto chargeAnswered
       :: else -> calling = 1; if :: !lookOnly && !looking -> begins(); sent = 1 :: else fi
       fi
     }
     if
     :: looking ->
        atomic {
          if
          :: key == DONE -> reply = DONE
          :: key == REFUSED -> reply = REFUSED
          :: key == NOTHING -> reply = UNSEEN
          :: key == NOTHING && live > 0 -> reply = DONE
          :: reply = UNKNOWN
          fi;
          if
#ifdef UNSEENCLEARS
          :: reply == UNSEEN -> reply = RETRY; before = 0
#elif defined(UNSEENSENDS)
          :: reply == UNSEEN -> reply = NOTHING; lookOnly = 0
#else
          :: reply == UNSEEN && lookOnly -> reply = NOTHING
          :: reply == UNSEEN && !lookOnly -> calling = 0; reply = NOTHING; before = 0; looking = 0; unseen = 1; goto end
#endif
          :: else
          fi
        }
     :: else
     fi;
     if
     :: reply == NOTHING && !lookOnly ->
        if
        :: atomic { arrive(reply) }
        :: atomic { arrive(reply); reply = UNKNOWN }
        :: atomic { late == 0 -> late = 1; reply = UNKNOWN }
        :: reply = UNKNOWN
        :: reply = RETRY
        fi
     :: else
     fi;
chargeAnswered:
     atomic {
       calling = 0;
       if :: reply == DONE && !byPerson && names -> named = 1 :: else fi;
       if
       :: reply == NOTHING -> hold = UNCLEAR
       :: reply == DONE && stop != CANCEL -> ends(RESERVING)
       :: reply == DONE && stop == CANCEL -> goBack(); settled()
       :: reply == REFUSED && before && !looks && !byPerson -> goBack()
       :: reply == REFUSED && !(before && !looks && !byPerson) && stop == CANCEL -> ends(CANCELED)
       :: reply == REFUSED && !(before && !looks && !byPerson) && stop != CANCEL -> ends(FAILED)
       :: reply == RETRY -> if :: !before || byPerson -> settled() :: else fi; waits(lookOnly)
       :: reply == UNKNOWN -> waits(lookOnly)
       fi;
       reply = NOTHING; before = 0; lookOnly = 0; byPerson = 0; looking = 0
     }
  :: atomic { hold == FREE && status == RESERVING && stop == NO ->
       if
       :: ends(CONFIRMING); ends(COMPLETED)
       :: goBack()
       :: hold = TRY
       :: hold = ATTENTION
       fi
     }
  :: atomic { hold == FREE && status == RESERVING && stop == CANCEL -> goBack() }
  :: atomic { hold == FREE && status == REFUNDING && stop != PAUSE ->
       before = doubt;
       if
       :: toldUndo != NOTHING -> reply = toldUndo; byPerson = 1; toldUndo = NOTHING; goto undoAnswered
       :: toldUndo == NOTHING && mayNotUndo && !byName ->
          hold = UNCLEAR; before = 0; goto end
       :: else -> calling = 1; begins();
          if
          :: body == NAMELESS && byName -> printf("violated: an undo says the same on every call\n"); assert(false)
          :: else
          fi;
          if :: byName -> body = NAMED :: else -> body = NAMELESS fi
       fi
     }
     if
     :: atomic { true -> takeBack(); reply = DONE }
     :: atomic { true -> takeBack(); reply = UNKNOWN }
     :: reply = UNKNOWN
     :: reply = RETRY
     fi;
undoAnswered:
     atomic {
       calling = 0;
       if
       :: reply == DONE -> ends(outcome)
       :: reply == RETRY -> if :: !before && !byPerson -> settled() :: else fi; waits(0)
       :: reply == UNKNOWN -> waits(0)
       fi;
       reply = NOTHING; before = 0; byPerson = 0
     }
  od
}

#define answered (status == CHARGING && told != NOTHING || status == REFUNDING && toldUndo != NOTHING)
#define refusedAsUnknown (!answered && (status == CHARGING && mayNotSend && !looks || status == REFUNDING && mayNotUndo && !byName))
#ifdef PAUSEYOUNG
#define mayResume true
#define resumed() doubtAge = 0
#else
#define mayResume (!refusedAsUnknown)
#define resumed() skip
#endif
#ifdef RETRYYOUNG
#define mayRetry true
#define retried() doubtAge = 0
#else
#define mayRetry (!refusedAsUnknown)
#define retried() skip
#endif

proctype people() {
end:
  do
  :: atomic { hold == TRY -> hold = FREE }
  :: atomic { !final(status) && (hold != FREE || status != REFUNDING && stop != CANCEL) -> stop = CANCEL; hold = FREE }
  :: atomic { !final(status) && stop == NO && hold == FREE -> stop = PAUSE }
  :: atomic { !final(status) && stop == NO && hold == TRY ->
       hold = PAUSED
#ifdef PAUSECLEARS
       ; settled()
#endif
     }
  :: atomic { stop == PAUSE -> stop = NO }
  :: atomic { hold == PAUSED && mayResume -> hold = FREE; resumed() }
  :: atomic { hold == ATTENTION && mayRetry -> hold = FREE; retried() }
  :: atomic { hold != FREE && (doubt || hold == UNCLEAR) && !answered && late == 0 && (status == CHARGING || status == REFUNDING) ->
       if
       :: status == CHARGING && live > 0 -> told = DONE; person = 1
       :: status == CHARGING && live > 0 -> told = DONE; person = 1; named = 1
       :: status == CHARGING && live == 0 -> told = REFUSED; person = 1
       :: status == CHARGING && live == 0 && key == NOTHING -> told = RETRY; person = 1
       :: status == REFUNDING -> live = 0; toldUndo = DONE /* by hand */
       :: status == REFUNDING && live > 0 -> toldUndo = RETRY
       fi;
       if :: hold != PAUSED -> hold = FREE :: else fi
     }
  /* The other side calls back. */
  :: atomic { status == CHARGING && doubt && told == NOTHING && key == DONE ->
       told = DONE; person = 0;
       if :: hold == TRY || hold == ATTENTION || hold == UNCLEAR -> hold = FREE :: else fi
     }
  :: atomic { status == REFUNDING && names && !named && key == DONE -> named = 1 } /* too late to be an answer */
  od
}

proctype time() {
  mtype unheard;
end:
  do
  :: atomic { late > 0 -> late = 0; arrive(unheard); unheard = 0 }
  :: atomic { late > 0 -> late = 0 }
#ifdef KEEPSDONE
#define forgettable (key == REFUSED)
#else
#define forgettable (key != NOTHING)
#endif
  :: atomic { forgettable && keyAge == 2 -> key = NOTHING; keyAge = 0 }
  :: atomic { late < 2 && !calling && (late > 0 || doubt && doubtAge < 2 || sent && sentAge < 2 || key != NOTHING && keyAge < 2) ->
       if :: late == 1 -> late = 2 :: else fi;
       if :: doubt && doubtAge < 2 -> doubtAge++ :: else fi;
       if :: sent && sentAge < 2 -> sentAge++ :: else fi;
       if :: key != NOTHING && keyAge < 2 -> keyAge++ :: else fi
     }
  od
}

proctype monitor() {
end:
  if
  :: atomic { live > 1 -> printf("violated: never two live charges\n"); assert(false) }
  :: atomic {
       (status == FAILED || status == CANCELED) && live > 0 ->
       printf("violated: nothing of a failed or canceled order is live, then or later\n"); assert(false)
     }
  :: atomic {
       (status == RESERVING || status == COMPLETED) && live != 1 ->
       printf("violated: what is charged in the books is charged\n"); assert(false)
     }
  fi
}

init {
  atomic {
    if :: looks = 0 :: looks = 1 fi;
    if :: names = 0 :: names = 1 fi;
    run driver(); run people(); run time(); run monitor()
  }
}
