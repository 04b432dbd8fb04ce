/* The commit of architecture §8: a coordinator over N engines, each with a journal of its own.
 *
 *   N 2|3    engines            E 1..3   sessions (epochs)
 *   CRASHES BLIPS CCRASHES  how often an engine dies (its weights are lost), a link is lost, the
 *                           coordinator dies
 *   OPERATOR 1: while the coordinator is down, one who has read its journal may resolve doubts
 *   LIVE     for the ltl properties: faults end
 *
 * An engine is one step here: commit.pml has its inside.  A vote that is durable and whose end
 * the engine has not heard is a doubt; the answer to an adoption names it, and the coordinator
 * says what its journal has.  Every step may be late, every deadline may expire.  init, start,
 * update and finish are one round; an
 * engine shows what the coordinator has said is visible, never more, so that has no variable;
 * commit.pml has late heartbeats.  Not here: operators that err, engines that are replaced by
 * others while they live (commit.pml has that).
 *
 * Every rule below can be switched off; then there must be a trace (run.py checks that):
 *   VOTE_NOT_DURABLE  FINISHED is answered before the vote is on disk
 *   PRESUMED_COMMIT   a cut-off engine resolves its doubt by itself: committed
 *   PRESUMED_ABORT    likewise: aborted
 *   HASTY_VERDICT     a doubt is answered while its record is issued but not durable
 *   VERDICT_UNNAMED   a verdict does not name its epoch
 *   OPERATOR_EARLY    an operator resolves although the coordinator lives
 *   DROP_AT_BOOT      an engine that meets a new coordinator drops its vote
 *   GRANT_OUTLIVES    what an engine grants its workers outlives its own grant
 *   VISIBLE_EARLY     visible before all have published or are fenced
 *   SHOWN_AT_PUBLISH  an engine shows the change when it is told to publish
 *   EARLY_PUBLISH     PUBLISH before the coordinator's record is durable
 *   NO_BOOT_WAIT      a new coordinator does not wait for the grants of the one before
 *   NO_HOLD           who comes back serves what it had, also before its doubt is resolved (without
 *                     the second half no trace: who has older weights is in doubt)
 *   NO_VERDICT        the coordinator never answers doubts (breaks the ltl property) */
#ifndef N
#define N 2
#endif
#ifndef E
#define E 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef BLIPS
#define BLIPS 1
#endif
#ifndef CCRASHES
#define CCRASHES 1
#endif
#ifndef OPERATOR
#define OPERATOR 0
#endif

#define ALL ((1 << N) - 1)
#define B(i) (1 << (i))

/* ---- engines: on disk */
byte voted[N];                /* epoch of a vote whose end it does not know; 0 = none */
byte took[N];                 /* epochs with a commit record of its own; a bit each */
/* ---- engines: in memory */
bool up[N];
bool mine[N];                 /* adopted by this life of the coordinator */
byte ended[N], inst[N];       /* epochs */
byte def[N];                  /* sequence served, 0 = none */
bool held[N], grant[N];

/* ---- frames on their way, by engine */
byte fin[N], pub[N], abt[N];  /* a bit for each epoch */
byte adopt[N];                /* ADOPT: 1 + sequence */
byte verdict[N];              /* of a doubt: 2 * its epoch + (1: committed) */

/* ---- coordinator: on disk */
byte durable;                 /* last sequence of its journal */
byte rec[E + 1];              /* sequence of the record that was issued for an epoch */
/* ---- coordinator: in memory */
bool cup = 1;
#define ABSENT 0
#define ADOPTING 1
#define DOUBT 2
#define IN 3
#define LOST 4
byte st[N];
bool gone[N];                 /* the engine that it means has died, which it has not noticed */
byte party, got;
#define IDLE 0
#define FINISH 1
#define RECORD 2
#define PUBLISH 3
#define ABORT 4
byte phase, epoch, visible;
bool waited = 1;              /* grants of earlier lives have run out */

/* ---- only for what is checked */
byte shown;                   /* newest sequence that was ever visible anywhere */
byte said[N];                 /* epochs for which it has answered FINISHED */
byte dropped, taken;          /* epochs that some engine ended one way or the other */

byte crashes = CRASHES, blips = BLIPS, ccrashes = CCRASHES;
#define recorded(e) (rec[e] != 0 && rec[e] <= durable)

#define any_of(set) \
  if :: (set) & B(1) -> e = 1 :: (set) & B(2) -> e = 2 :: (set) & B(3) -> e = 3 fi

/* ---- what must hold in every state */
#define serves(p) (up[p] && def[p] != 0 && !held[p] && grant[p])
/* An engine that has voted for what was recorded does not come back as if it had not. */
#define forgot(p, e) (st[p] == IN && !gone[p] && phase == IDLE && recorded(e) && \
                      (said[p] & B(e)) && !(took[p] & B(e)))

active proctype Reader() {
end:
  do
  :: d_step { (serves(0) && def[0] < shown) || (serves(1) && def[1] < shown) ||
       (serves(N - 1) && def[N - 1] < shown) -> assert(false) /* I8 across engines */ }
  :: d_step { def[0] > durable || def[1] > durable || def[N - 1] > durable ||
       ((taken & B(1)) && !recorded(1)) || ((taken & B(E)) && !recorded(E)) ->
       assert(false) /* published, not recorded */ }
  :: d_step { ((dropped & B(1)) && recorded(1)) || ((dropped & B(E)) && recorded(E)) ->
       assert(false) /* recorded, but dropped */ }
  :: d_step { dropped & taken -> assert(false) /* resolved both ways */ }
  :: d_step { forgot(0, 1) || forgot(1, 1) || forgot(N - 1, 1) || forgot(0, E) ||
       forgot(1, E) || forgot(N - 1, E) -> assert(false) }
  od
}

inline answer(p, in_phase, e) {
  if
  :: phase == in_phase && epoch == e && (party & B(p)) && !gone[p] -> got = got | B(p)
  :: else
  fi
}

inline over(p, e) {
  if :: ended[p] < e -> ended[p] = e :: else fi;
  fin[p] = fin[p] & ~(B(ended[p] + 1) - 1)
}

/* ---- an engine */
inline commits(p, e) {
  taken = taken | B(e); took[p] = took[p] | B(e);
  if
  :: inst[p] == e -> def[p] = (rec[e] != 0 -> rec[e] : durable + 1); inst[p] = 0
  :: else                     /* it has lost the weights: behind */
  fi;
  voted[p] = 0; over(p, e)
}

inline drops(p, e) {
  if :: voted[p] == e -> dropped = dropped | B(e); voted[p] = 0 :: else fi;
  if :: inst[p] == e -> inst[p] = 0 :: else fi;
  over(p, e)
}

inline hold(p, seq) {
#ifdef NO_HOLD
  held[p] = false
#else
  held[p] = (def[p] != 0 && def[p] != seq)
#endif
}

#define sentence(p) verdict[p] = 2 * voted[p] + (recorded(voted[p]) -> 1 : 0)
#ifdef VERDICT_UNNAMED
#define meant true
#else
#define meant (verdict[p] / 2 == e)
#endif

proctype Engine(byte p) {
  byte e;
end:
  do
  :: d_step { up[p] && adopt[p] != 0 -> e = adopt[p] - 1; adopt[p] = 0;
      if
      :: !mine[p] -> /* what the coordinator before sent is not taken in any more */
        mine[p] = true; fin[p] = 0; pub[p] = 0; abt[p] = 0; verdict[p] = 0;
        grant[p] = false;
#ifdef DROP_AT_BOOT
        if :: voted[p] != 0 -> drops(p, voted[p]) :: else fi
#endif
      :: else
      fi;
      hold(p, e);
      if :: inst[p] != voted[p] -> inst[p] = 0 :: else fi;
      over(p, epoch);
      if :: st[p] == ADOPTING && !gone[p] -> st[p] = (voted[p] != 0 -> DOUBT : IN) :: else fi;
      e = 0 }
  :: d_step { up[p] && verdict[p] != 0 ->
      e = voted[p];
      if
      :: e != 0 && meant && (verdict[p] & 1) -> commits(p, e); hold(p, durable)
      :: e != 0 && meant && !(verdict[p] & 1) -> drops(p, e)
      :: else
      fi;
      verdict[p] = 0; e = 0;
      if :: st[p] == DOUBT && !gone[p] && voted[p] == 0 -> st[p] = IN :: else fi }
  :: atomic { up[p] && fin[p] != 0 && voted[p] == 0 && inst[p] == 0 -> any_of(fin[p]);
      inst[p] = e; fin[p] = fin[p] & ~B(e); e = 0 }
  :: d_step { up[p] && inst[p] != 0 && voted[p] == 0 && inst[p] > ended[p] ->
      voted[p] = inst[p]; said[p] = said[p] | B(inst[p]); answer(p, FINISH, inst[p]) }
  :: atomic { up[p] && pub[p] != 0 -> any_of(pub[p]); pub[p] = pub[p] & ~B(e);
      if
      :: voted[p] == e || (inst[p] == e && e > ended[p]) ->
        commits(p, e); held[p] = (def[p] == 0); answer(p, PUBLISH, e);
#ifdef SHOWN_AT_PUBLISH
        if :: shown < rec[e] -> shown = rec[e] :: else fi
#endif
      :: else -> if :: took[p] & B(e) -> answer(p, PUBLISH, e) :: else fi
      fi; e = 0 }
  :: atomic { up[p] && abt[p] != 0 -> any_of(abt[p]); abt[p] = abt[p] & ~B(e);
      drops(p, e); answer(p, ABORT, e); e = 0 }
#ifdef PRESUMED_COMMIT
  :: d_step { up[p] && voted[p] != 0 && st[p] != IN -> e = voted[p]; commits(p, e); e = 0 }
#endif
#ifdef PRESUMED_ABORT
  :: d_step { up[p] && voted[p] != 0 && st[p] != IN -> e = voted[p]; drops(p, e); e = 0 }
#endif
#ifdef OPERATOR_EARLY
  :: d_step { up[p] && voted[p] != 0 && st[p] != IN && verdict[p] == 0 ->
      sentence(p) }
#endif
  :: d_step { OPERATOR && !cup && up[p] && voted[p] != 0 && verdict[p] == 0 ->
      sentence(p) }
  od
}

/* ---- the coordinator's view of an engine */
inline is_down(p, to) {
  st[p] = to; party = party & ~B(p); adopt[p] = 0;
  if
  :: to == ABSENT && (phase == PUBLISH || phase == ABORT) -> got = got | B(p)
  :: else
  fi
}

inline grant_ends(p) {
#ifdef GRANT_OUTLIVES
  skip
#else
  grant[p] = false
#endif
}

#ifdef HASTY_VERDICT
#define door_open true
#else
#define door_open (phase != RECORD && phase != PUBLISH)
#endif
#define awaits(p) ((phase == PUBLISH || phase == ABORT) && !(got & B(p)))

proctype Rank(byte p) {
end:
  do
  :: d_step { gone[p] -> gone[p] = false; is_down(p, ABSENT) }
  :: d_step { cup && up[p] && st[p] == ABSENT && door_open ->
      st[p] = ADOPTING; adopt[p] = 1 + durable }
#ifndef NO_VERDICT
  :: d_step { cup && st[p] == DOUBT && !gone[p] && verdict[p] == 0 && door_open ->
      if
      :: voted[p] != 0 -> sentence(p)
      :: else -> st[p] = IN /* an operator or a late frame was faster */
      fi }
#endif
  :: d_step { st[p] == LOST && !gone[p] -> grant_ends(p); is_down(p, ABSENT) }
#ifdef NO_HOLD
  :: d_step { (st[p] == IN || st[p] == DOUBT) && !gone[p] && !grant[p] -> grant[p] = true }
#else
  :: d_step { st[p] == IN && !gone[p] && !grant[p] -> grant[p] = true }
#endif
  :: d_step { st[p] == IN && !gone[p] && awaits(p) -> is_down(p, LOST) }
  :: d_step { !up[p] -> up[p] = true }
  od
}

proctype Faults() {
  byte p;
end:
  do
  :: atomic { crashes > 0 -> crashes--; select(p : 0 .. (N - 1));
      if
      :: up[p] ->
        up[p] = false; mine[p] = false; ended[p] = 0; inst[p] = 0; def[p] = 0; held[p] = false;
        grant[p] = false; fin[p] = 0; pub[p] = 0; abt[p] = 0; adopt[p] = 0; verdict[p] = 0;
#ifdef VOTE_NOT_DURABLE
        voted[p] = 0;
#endif
        gone[p] = (st[p] != ABSENT)
      :: else
      fi; p = 0 }
  :: atomic { blips > 0 -> blips--; select(p : 0 .. (N - 1));
      if :: st[p] != ABSENT && st[p] != LOST && !gone[p] -> is_down(p, LOST) :: else fi; p = 0 }
  od
}

/* ---- the coordinator */
#define send(f) \
  for (i : 0 .. (N - 1)) { \
    if :: (party & B(i)) && !gone[i] -> f[i] = f[i] | B(epoch) :: else fi \
  } \
  i = 0

inline ask_anew() {
  got = 0;
  for (i : 0 .. (N - 1)) {
    if
    :: phase != FINISH && (st[i] == ABSENT || st[i] == ADOPTING || st[i] == DOUBT) ->
      got = got | B(i)
    :: else
    fi
  }
  i = 0
}

#define all_in (st[0] == IN && st[1] == IN && st[N - 1] == IN)
#ifdef VISIBLE_EARLY
#define confirmed ((got | 1) == ALL)
#else
#define confirmed (got == ALL)
#endif
#ifdef NO_BOOT_WAIT
#define grants_over true
#else
#define grants_over waited
#endif

active proctype Coordinator() {
  byte i;
  atomic {
    for (i : 0 .. (N - 1)) { up[i] = true; run Engine(i); run Rank(i) }
    i = 0; run Faults()
  }
end:
  do
  :: d_step { cup && phase == IDLE && epoch < E && all_in && visible == durable ->
      epoch++; phase = FINISH; party = ALL; ask_anew(); send(fin) }
  :: d_step { phase == FINISH -> phase = ABORT; ask_anew(); send(abt) } /* deadline, down, call */
  :: d_step { phase == FINISH && got == ALL && party == ALL && grants_over ->
      rec[epoch] = durable + 1; phase = RECORD;
#ifdef EARLY_PUBLISH
      send(pub)
#endif
      }
  :: d_step { phase == RECORD -> durable = rec[epoch]; phase = PUBLISH; ask_anew(); send(pub) }
  :: d_step { phase == PUBLISH && confirmed ->
      visible = rec[epoch]; shown = visible; phase = IDLE; party = 0; got = 0 }
  :: d_step { phase == ABORT && got == ALL ->
      assert(rec[epoch] == 0); phase = IDLE; party = 0; got = 0 }
  :: atomic { cup && ccrashes > 0 -> ccrashes--;
      /* What was issued may have reached the disk; if not, its number is free again. */
      if
      :: phase == RECORD -> if :: durable = rec[epoch] :: rec[epoch] = 0 fi
      :: else
      fi;
      cup = false; visible = 0; phase = IDLE; party = 0; got = 0; waited = false;
      for (i : 0 .. (N - 1)) {
        st[i] = ABSENT; gone[i] = false; adopt[i] = 0; mine[i] = false
      }
      i = 0 }
#ifdef LIVE
  :: d_step { ccrashes > 0 -> ccrashes-- }
#endif
  :: d_step { !cup -> cup = true }
  /* One grant after boot: the last record is visible, whoever has not published it is held. */
  :: d_step { cup && !waited && phase == IDLE -> waited = true;
      for (i : 0 .. (N - 1)) {
        if :: !mine[i] -> grant_ends(i) :: else fi
      }
      i = 0 }
  :: d_step { cup && phase == IDLE && visible < durable && grants_over ->
      visible = durable;
      if :: shown < visible -> shown = visible :: else fi }
  od
}

/* Every doubt ends; a session ends; what was recorded becomes visible, also when the
 * coordinator dies in between. */
ltl resolved { []((voted[0] != 0 -> <>(voted[0] == 0)) && (voted[1] != 0 -> <>(voted[1] == 0))) }
ltl ends { [](phase != IDLE -> <>(phase == IDLE)) }
ltl visible_in_the_end { [](durable > shown -> <>(durable == shown)) }
