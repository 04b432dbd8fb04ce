/* The commit of architecture §3 between one engine and W workers: rounds, order and identity
 * of frames, fencing by exit or by grant, coming back, a crash of the engine with its journal.
 *
 *   W 2|3    workers            E 1..3    sessions (epochs)
 *   JOINED   1: fenced by grant, survive the engine; 0: children, fenced by exit
 *   CRASHES BLIPS STOPS ECRASHES   how often a worker dies, a link closes, a worker hangs,
 *                                  the engine dies
 *   LIVE     for the ltl properties: faults end, deadlines expire only where something is wrong
 *
 * Time is not counted: every step may be late, so every deadline may expire (not with LIVE),
 * and a worker that is stopped and continued is one whose steps are late.  A frame that has no
 * effect any more by the rules (its epoch has ended, it is meant for another life) is taken
 * away at once: late copies of it would only multiply states; with that rule switched off they
 * stay and arrive.  init, start, update and finish are one round.  Not here: bytes, labels,
 * partial updates, several callers.
 *
 * Every rule below can be switched off; then there must be a trace (run.py checks that):
 *   NO_DOOR        who joins between the issue of a record and its visibility is let in
 *   PIPE_FENCES    a closed pipe counts as fenced
 *   VISIBLE_EARLY  visible when one PUBLISH is not confirmed
 *   EARLY_PUBLISH  PUBLISH before the record is durable
 *   SOME_FINISHED  a rank that is down does not fail FINISH
 *   OLD_ANSWER     answers to an earlier question count for this one
 *   NO_ENDED       frames of an ended epoch are taken in
 *   NOT_ENDED_AT_ADOPTION  who comes back keeps what was begun with it before
 *   ABORT_ISSUED   an abort goes through after the record was issued
 *   STALE_GRANT    a heartbeat that is late renews the grant
 *   EARLY_ACK      ABORT is acknowledged while the device thread still writes
 *   NO_WAIT_ACK    the next session does not wait for the ABORTs of the last one
 *   NO_HOLD        who comes back serves what it had
 *   LATE_ADOPT     a late copy of an earlier adoption counts
 *   NO_FENCE_WAIT  a newcomer is let in before its predecessor at the rank is fenced
 *   NO_LIFE        frames of another boot are taken in
 *   NO_BOOT_WAIT   a new engine does not wait for the grants of the one before
 *   NO_FENCE       who does not confirm is waited for (breaks the ltl properties)
 * Of another incarnation in the same boot: adoption ends all epochs so far, which covers it. */
#ifndef W
#define W 2
#endif
#ifndef E
#define E 2
#endif
#ifndef JOINED
#define JOINED 0
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef BLIPS
#define BLIPS 1
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef ECRASHES
#define ECRASHES 0
#endif

#define ALL ((1 << W) - 1)
#define B(i) (1 << (i))

/* ---- ranks: the process that is there now */
bool alive[W];
byte stopped[W];              /* 1: will go on; 2: hangs until it is killed (LIVE) */
bool mine[W];                 /* it was adopted by this life of the engine */
byte ended[W];                /* highest epoch that is over for it */
byte writing[W], inst[W];     /* epochs: of the device thread's job, of what is installed */
byte def[W];                  /* sequence served, 0 = none */
bool held[W], grant[W];
byte beat[W];                 /* heartbeat with a grant on its way: 2 = from before a fence */
byte ghost[W];                /* a cut-off predecessor with a running grant: 1 + its sequence */
byte oghost[W];               /* the same, granted by an earlier life of the engine */
bool alien[W];                /* what is installed came from another engine (NO_LIFE) */
byte ever[E + 1];             /* ranks that installed an epoch */

/* ---- frames on their way, by rank; a bit for each epoch */
byte fin[W], pub[W], abt[W];
byte adopt[W];                /* ADOPT: 1 + sequence */
byte oldadopt[W];             /* a late copy of one (LATE_ADOPT) */
byte oldfin[W];               /* FINISH of an earlier boot (NO_LIFE) */

/* ---- engine */
#define ABSENT 0
#define ADOPTING 1
#define IN 2
#define LOST 3
byte st[W];                   /* its view of the rank */
bool gone[W];                 /* the process that it means has ended, which it has not noticed */
byte party, got;              /* ranks: of the session and never lost; that have answered */
#define IDLE 0
#define FINISH 1
#define RECORD 2
#define PUBLISH 3
#define ABORT 4
byte phase, epoch;
byte visible, durable;
byte rec[E + 1];              /* sequence of the record that was issued for an epoch */
bool waited = 1;              /* grants of earlier lives have run out */

/* ---- only for what is checked */
byte shown;                   /* newest sequence that was ever visible */

byte crashes = CRASHES, stops = STOPS, blips = BLIPS, ecrashes = ECRASHES;

#define runs(w) (alive[w] && stopped[w] == 0)
#define calm (crashes == 0 && stops == 0 && blips == 0 && ecrashes == 0)
#ifdef LIVE
#define patience_over(w) (!calm || gone[w] || !runs(w))
#define unwell(w) (patience_over(w) || st[w] != IN)
#define may_abort (party != ALL || unwell(0) || unwell(1) || unwell(W - 1))
#define well(w) (st[w] == IN && !gone[w] && runs(w))
#define fresh_start (epoch + 1 < E || (calm && well(0) && well(1) && well(W - 1)))
#else
#define patience_over(w) true
#define may_abort true
#define fresh_start true
#endif

#ifdef NO_DOOR
#define door_open true
#else
#define door_open (phase != RECORD && phase != PUBLISH)
#endif

/* The answer of the process at w to the round of (p, e) counts. */
inline answer(w, p, e) {
  if
  :: phase == p && epoch == e && (party & B(w)) && !gone[w] -> got = got | B(w)
  :: else
  fi
}

/* e: one of a set of epochs, any. */
#define any_of(set) \
  if :: (set) & B(1) -> e = 1 :: (set) & B(2) -> e = 2 :: (set) & B(3) -> e = 3 fi

/* Frames that have no effect at w any more. */
inline over(w, e) {
  if :: ended[w] < e -> ended[w] = e :: else fi;
#ifndef NO_ENDED
  fin[w] = fin[w] & ~(B(ended[w] + 1) - 1);
  pub[w] = pub[w] & ~(B(ended[w] + 1) - 1);
#endif
}

inline no_frames(w) {
#ifdef NO_LIFE
  oldfin[w] = oldfin[w] | fin[w];
#endif
  fin[w] = 0; pub[w] = 0; abt[w] = 0; adopt[w] = 0; beat[w] = 0
}

inline fresh_process(w) {
  no_frames(w); oldadopt[w] = 0; oldfin[w] = 0;
  stopped[w] = 0; mine[w] = false; ended[w] = 0; writing[w] = 0; inst[w] = 0; def[w] = 0;
  held[w] = false; grant[w] = false
}

inline process_ends(w) {
  alive[w] = false; fresh_process(w)
}

/* ---- what a reader may see, in every state */
#define serves(w) (runs(w) && def[w] != 0 && !held[w] && (!JOINED || grant[w]))
#define old_read(w) ((serves(w) && def[w] < shown) || (ghost[w] && ghost[w] <= shown) || \
                     (oghost[w] && oghost[w] <= shown))
#define unrecorded_read(w) (serves(w) && def[w] > durable)

active proctype Reader() {
end:
  do
  :: d_step { old_read(0) || old_read(1) || old_read(W - 1) -> assert(false) /* I8 */ }
  :: d_step { unrecorded_read(0) || unrecorded_read(1) || unrecorded_read(W - 1) ->
       assert(false) /* I3 */ }
  od
}

/* ---- a worker */
inline adopted(w, seq) {
  if
  :: !mine[w] -> /* another engine's or nobody's: all of it is dropped */
    mine[w] = true; def[w] = 0; held[w] = false; grant[w] = false;
    no_frames(w); inst[w] = 0; over(w, epoch)
  :: else ->
#ifdef NO_HOLD
    held[w] = false;
#else
    held[w] = (def[w] != 0 && def[w] != seq);
#endif
#ifndef NOT_ENDED_AT_ADOPTION
    inst[w] = 0; over(w, epoch)
#endif
  fi
}

#ifdef EARLY_ACK
#define let_go(w) true
#define takes_fin(w) true
#else
#define let_go(w) (writing[w] == 0)
#define takes_fin(w) (writing[w] == 0 || ended[w] < writing[w]) /* else when that has ended */
#endif

proctype Worker(byte w) {
  byte e;
end:
  do
  :: atomic { runs(w) && adopt[w] != 0 ->
      e = adopt[w] - 1; adopt[w] = 0;
      adopted(w, e);
#ifdef LATE_ADOPT
      if :: oldadopt[w] == 0 -> oldadopt[w] = e + 1 :: true fi;
#endif
      if :: st[w] == ADOPTING && !gone[w] -> st[w] = IN :: else fi; e = 0 }
#ifdef LATE_ADOPT
  :: atomic { runs(w) && oldadopt[w] != 0 && mine[w] ->
      e = oldadopt[w] - 1; oldadopt[w] = 0; adopted(w, e); e = 0 }
#endif
  :: d_step { runs(w) && beat[w] != 0 -> grant[w] = true; beat[w] = 0 }
  :: d_step { runs(w) && writing[w] != 0 -> /* the device thread has ended its job */
      if
      :: writing[w] > ended[w] ->
        inst[w] = writing[w]; ever[writing[w]] = ever[writing[w]] | B(w);
        answer(w, FINISH, writing[w])
      :: else
      fi; writing[w] = 0 }
  :: atomic { runs(w) && fin[w] != 0 && takes_fin(w) ->
      any_of(fin[w]);
#ifdef NO_ENDED
      if :: fin[w] = fin[w] & ~B(e) :: true fi; /* a copy may come again */
#else
      fin[w] = fin[w] & ~B(e);
#endif
      if
      :: !mine[w] || writing[w] == e
      :: mine[w] && inst[w] == e -> answer(w, FINISH, e) /* asked again */
      :: else ->
        assert(inst[w] == 0 && writing[w] == 0); /* I7: refused, something is still open */
        writing[w] = e
      fi; e = 0 }
#ifdef NO_LIFE
  :: d_step { runs(w) && oldfin[w] != 0 && mine[w] ->
      oldfin[w] = 0; /* numbers of boots have no order: it may be the next session's */
      if
      :: writing[w] == 0 && inst[w] == 0 && phase == IDLE && epoch < E ->
        writing[w] = epoch + 1; alien[w] = true
      :: else
      fi }
#endif
  :: atomic { runs(w) && pub[w] != 0 ->
      any_of(pub[w]);
      pub[w] = pub[w] & ~B(e);
      if
      :: mine[w] == 0 && ECRASHES == 0
      :: else ->
        if
        :: inst[w] == e ->
          assert(ever[e] == ALL && rec[e] != 0 && !alien[w]); /* I1, I3 */
          def[w] = rec[e]; inst[w] = 0; held[w] = false; over(w, e); answer(w, PUBLISH, e)
        :: inst[w] != e && rec[e] != 0 && def[w] >= rec[e] -> answer(w, PUBLISH, e)
        :: else                               /* refused */
        fi
      fi; e = 0 }
  :: atomic { runs(w) && abt[w] != 0 && (let_go(w) || !(abt[w] & B(ended[w]))) ->
      any_of(abt[w]);
      over(w, e);
      if :: inst[w] <= e -> inst[w] = 0 :: else fi;
      if
      :: let_go(w) -> abt[w] = abt[w] & ~B(e);
        answer(w, ABORT, e)
      :: else
      fi; e = 0 }
  od
}

/* ---- the engine's view of a rank, and the operating system there */
inline is_down(w, to) {
  st[w] = to; party = party & ~B(w); adopt[w] = 0;
  if
  :: to == ABSENT && (phase == PUBLISH || phase == ABORT) -> got = got | B(w)
  :: else
  fi
}

/* Its grant has run out by the engine's clock (heartbeats of before are older), or it is
 * killed. */
inline fence(w) {
  if
  :: JOINED ->
    grant[w] = false; ghost[w] = 0;
#ifdef STALE_GRANT
    if :: beat[w] == 1 -> beat[w] = 2 :: else fi
#else
    beat[w] = 0
#endif
  :: else -> process_ends(w)
  fi;
  is_down(w, ABSENT)
}

#define awaits(w) ((phase == PUBLISH || phase == ABORT) && !(got & B(w)))
#ifdef NO_FENCE_WAIT
#define may_join(w) (st[w] == ABSENT || (st[w] == LOST && ghost[w]))
#else
#define may_join(w) (st[w] == ABSENT)
#endif

proctype Rank(byte w) {
end:
  do
  :: d_step { gone[w] -> gone[w] = false; is_down(w, ABSENT) }
  :: d_step { runs(w) && may_join(w) && door_open -> st[w] = ADOPTING; adopt[w] = 1 + visible }
  :: d_step { st[w] == LOST && !gone[w] -> fence(w) }
#ifdef STALE_GRANT
  :: d_step { JOINED && st[w] == IN && !gone[w] && beat[w] == 0 -> beat[w] = 1 }
#else
  :: d_step { JOINED && st[w] == IN && !gone[w] && beat[w] == 0 && !grant[w] -> beat[w] = 1 }
#endif
#ifndef NO_FENCE
  /* does not confirm, or answers neither heartbeats nor ADOPT */
  :: d_step { st[w] == IN && !gone[w] && awaits(w) &&
       (patience_over(w) || !((pub[w] | abt[w]) & B(epoch))) -> is_down(w, LOST) }
  :: d_step { (st[w] == IN || st[w] == ADOPTING) && !gone[w] && stopped[w] -> is_down(w, LOST) }
#endif
  :: d_step { !alive[w] -> alive[w] = true }
  :: d_step { stopped[w] == 1 -> stopped[w] = 0 }
  /* its launcher does what the engine does to a child */
  :: d_step { stopped[w] == 2 && st[w] == ABSENT -> process_ends(w) }
  /* A launcher replaces it although it lives, cut off. */
  :: d_step { JOINED && st[w] == LOST && !gone[w] && ghost[w] == 0 && runs(w) && def[w] != 0 &&
       !held[w] && grant[w] -> ghost[w] = 1 + def[w]; fresh_process(w) }
  od
}

proctype Faults() {
  byte w;
end:
  do
  :: atomic { crashes > 0 -> crashes--; select(w : 0 .. (W - 1));
      if
      :: alive[w] -> process_ends(w); gone[w] = (st[w] != ABSENT && ghost[w] == 0)
      :: else
      fi; w = 0 }
  :: atomic { stops > 0 -> stops--; select(w : 0 .. (W - 1));
      if
      :: alive[w] && stopped[w] == 0 -> stopped[w] = 1
#ifdef LIVE
      :: alive[w] && stopped[w] == 0 -> stopped[w] = 2
#endif
      :: else
      fi; w = 0 }
  :: atomic { blips > 0 -> blips--; select(w : 0 .. (W - 1)); /* its link closes */
      if
      :: (st[w] == IN || st[w] == ADOPTING) && !gone[w] ->
#ifdef PIPE_FENCES
        is_down(w, ABSENT)
#else
        is_down(w, LOST)
#endif
      :: else
      fi; w = 0 }
  od
}

/* ---- the engine */
#define send(f) \
  for (i : 0 .. (W - 1)) { \
    if :: (party & B(i)) && !gone[i] -> f[i] = f[i] | B(epoch) :: else fi \
  } \
  i = 0

inline ask_anew() {
#ifndef OLD_ANSWER
  got = 0;
#endif
  for (i : 0 .. (W - 1)) { /* who is not there needs no PUBLISH and no ABORT */
    if
    :: phase != FINISH && (st[i] == ABSENT || st[i] == ADOPTING) -> got = got | B(i)
    :: else
    fi
  }
  i = 0
}

inline end_session() {
  phase = IDLE; party = 0; got = 0
}

#define all_in (st[0] == IN && st[1] == IN && st[W - 1] == IN)
#ifdef NO_WAIT_ACK
#define acknowledged true
#else
#define acknowledged (got == ALL)
#endif
#ifdef VISIBLE_EARLY
#define confirmed ((got | 1) == ALL)
#else
#define confirmed (got == ALL)
#endif
#ifdef SOME_FINISHED
#define all_finished ((got | (ALL & ~party)) == ALL)
#else
#define all_finished (got == ALL && party == ALL)
#endif
#ifdef NO_BOOT_WAIT
#define grants_over true
#else
#define grants_over waited
#endif

active proctype Engine() {
  byte i;
  atomic {
    for (i : 0 .. (W - 1)) { alive[i] = true; run Worker(i); run Rank(i) }
    i = 0; run Faults()
  }
end:
  do
  :: d_step { phase == IDLE && epoch < E && all_in && fresh_start ->
      epoch++; phase = FINISH; party = ALL; ask_anew(); send(fin) }
  :: d_step { phase == FINISH && may_abort -> phase = ABORT; ask_anew(); send(abt) }
  :: d_step { phase == FINISH && all_finished && grants_over ->
      rec[epoch] = durable + 1; phase = RECORD;
#ifdef EARLY_PUBLISH
      send(pub)
#endif
      }
  :: d_step { phase == RECORD -> /* a failed fsync is rolled forward */
      durable = rec[epoch]; phase = PUBLISH; ask_anew(); send(pub) }
#ifdef ABORT_ISSUED
  :: atomic { phase == RECORD -> if :: durable = rec[epoch] :: rec[epoch] = 0 fi;
      phase = ABORT; ask_anew(); send(abt) }
#endif
  :: d_step { phase == PUBLISH && confirmed ->
      assert(rec[epoch] > shown);              /* I4 */
      visible = rec[epoch]; shown = visible; end_session() }
  :: d_step { phase == ABORT && acknowledged ->
      assert(rec[epoch] == 0);                 /* I3: nothing aborted is recorded */
      end_session() }
  :: d_step { !waited -> waited = true;        /* one grant after boot */
      for (i : 0 .. (W - 1)) {
        oghost[i] = 0;
        if :: !mine[i] -> grant[i] = false; beat[i] = 0 :: else fi
      }
      i = 0 }
  :: atomic { ecrashes > 0 -> ecrashes--;
      /* What was issued may have reached the disk; if not, its number is free again. */
      if
      :: phase == RECORD -> if :: durable = rec[epoch] :: rec[epoch] = 0 fi
      :: else
      fi;
      visible = 0; end_session(); waited = false;
      for (i : 0 .. (W - 1)) {
        st[i] = ABSENT; gone[i] = false; adopt[i] = 0;
        if
        :: !JOINED -> process_ends(i)
        :: JOINED ->
          if :: ghost[i] -> oghost[i] = ghost[i]; ghost[i] = 0 :: else fi;
          mine[i] = false
        :: JOINED && serves(i) && !ghost[i] && !oghost[i] -> /* cut off, and replaced */
          oghost[i] = 1 + def[i]; fresh_process(i)
        fi
      }
      i = 0 }
#ifdef LIVE
  :: d_step { ecrashes > 0 -> ecrashes-- }
#endif
  od
}

/* A begun finish ends; a record that is durable becomes visible, unless the engine dies;
 * when faults have ended, the last session commits. */
ltl ends { [](phase != IDLE -> <>(phase == IDLE)) }
ltl visible_in_the_end { [](phase == PUBLISH -> <>(shown == durable || ecrashes != ECRASHES)) }
ltl fresh { <>(rec[E] != 0 && shown == rec[E]) }
