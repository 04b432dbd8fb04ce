/* The commit of architecture §3 between one engine and W workers: order and identity of
 * frames, fencing by exit or by grant, coming back, a crash of the engine with its journal.
 * Not here: bytes, more than one session at a time, the wire.
 *
 *   W 2|3   workers            E      sessions          JOINED  fenced by grant, not by exit
 *   CRASHES STOPS BLIPS DUPS ECRASHES how often each fault may happen
 *
 * Every rule below can be switched off; then there must be a trace (run.py checks that):
 *   NO_DOOR        who joins between record and visibility is let in
 *   PIPE_FENCES    a closed pipe counts as fenced
 *   VISIBLE_EARLY  visible when one PUBLISH is not confirmed
 *   NO_ENDED       frames of an ended epoch are taken in
 *   ABORT_ISSUED   an abort goes through after the record was issued
 *   STALE_GRANT    a heartbeat that is late renews the grant
 *   EARLY_ACK      ABORT is acknowledged while the device thread still writes
 *   NO_HOLD        who comes back serves what it had
 *   NO_LIFE        frames meant for another life are taken in
 *   NO_BOOT_WAIT   a new engine does not wait for the grants of the one before
 *   NO_WAIT_ACK    the next session does not wait for the ABORTs of the last one
 */
#ifndef W
#define W 2
#endif
#ifndef E
#define E 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifndef BLIPS
#define BLIPS 1
#endif
#ifndef DUPS
#define DUPS 1
#endif
#ifndef ECRASHES
#define ECRASHES 0
#endif
#define LIVES 3

#define AT(w, e) ((w) * (E + 1) + (e))
#define ALL ((1 << W) - 1)
#define LIFE(w) (boot * 4 + inc[w])

/* ---- workers */
byte inc[W];                  /* life of the process at the rank; 0 = none yet */
bool alive[W], stopped[W];
byte wboot[W];                /* engine that adopted it */
byte ended[W], writing[W], inst[W];
byte def[W];                  /* sequence served, 0 = none */
bool held[W], grant[W];
byte beat[W];                 /* heartbeat on its way: 0 none, 1 fresh, 2 from before a fence */
byte ever[E + 1];             /* ranks that installed an epoch */

/* ---- frames and answers, by rank and epoch; the value is the life they are meant for */
byte fin[W * (E + 1)], pub[W * (E + 1)], abt[W * (E + 1)];
byte okfin[W * (E + 1)], okpub[W * (E + 1)], okabt[W * (E + 1)];

/* ---- engine */
byte boot = 1;
bool in[W], lost[W];
byte asked[W];                /* life that the session counts on */
byte visible, issued, durable, epoch, next_seq = 1;
byte seq_epoch[E + 2];        /* what the journal says of each number */
bool pending;                 /* a record is issued, its change not visible */
bool waited = 1;              /* grants of earlier engines have run out */
byte phase;                   /* 0 idle, 1 start, 2 finish, 3 record, 4 publish, 5 abort */
bool request, answered;

byte crashes = CRASHES, stops = STOPS, blips = BLIPS, dups = DUPS, ecrashes = ECRASHES;

#define runs(w) (alive[w] && !stopped[w])
#ifdef NO_LIFE
#define mine(f, w) ((f) != 0 && wboot[w] != 0)
#else
#define mine(f, w) ((f) == wboot[w] * 4 + inc[w])
#endif
#ifdef NO_ENDED
#define is_new(w, e) true
#else
#define is_new(w, e) (ended[w] < (e))
#endif
#ifdef NO_DOOR
#define door_open true
#else
#define door_open (!pending)
#endif

#define consume(f, i) if :: f[i] = 0 :: dups > 0 -> dups-- fi

inline end_process(w) {
  alive[w] = false; stopped[w] = false; grant[w] = false; beat[w] = 0;
  writing[w] = 0; inst[w] = 0; def[w] = 0; ended[w] = 0; wboot[w] = 0; held[w] = false
}

/* What a reader that is not stopped gets: an invariant of every state. */
inline read(w) {
  if
  :: runs(w) && def[w] != 0 && !held[w] && (!JOINED || grant[w]) ->
    assert(def[w] >= visible || wboot[w] != boot);           /* I8 */
    assert(wboot[w] == boot || visible == 0);                /* I8 over a restart */
    assert(ever[seq_epoch[def[w]]] == ALL);                  /* I1 */
    assert(def[w] <= durable)                                /* I3: only what is recorded */
  :: else
  fi
}

proctype Worker(byte w) {
  byte e;
end:
  do
  :: atomic { runs(w) && beat[w] != 0 ->
#ifdef STALE_GRANT
      grant[w] = true;
#else
      if :: beat[w] == 1 -> grant[w] = true :: else fi;
#endif
      beat[w] = 0; read(w) }
  :: atomic { runs(w) && writing[w] != 0 -> /* the device thread has ended its job */
      inst[w] = writing[w]; ever[writing[w]] = ever[writing[w]] | (1 << w);
      okfin[AT(w, writing[w])] = wboot[w] * 4 + inc[w]; writing[w] = 0 }
  :: atomic { runs(w) && (fin[AT(w, 1)] != 0 || fin[AT(w, E)] != 0) ->
      if :: fin[AT(w, 1)] != 0 -> e = 1 :: fin[AT(w, E)] != 0 -> e = E fi;
      if
      :: mine(fin[AT(w, e)], w) && is_new(w, e) && writing[w] == 0 && inst[w] != e ->
        writing[w] = e; consume(fin, AT(w, e))
      :: else -> fin[AT(w, e)] = 0
      fi; e = 0 }
  :: atomic { runs(w) && (pub[AT(w, 1)] != 0 || pub[AT(w, E)] != 0) ->
      if :: pub[AT(w, 1)] != 0 -> e = 1 :: pub[AT(w, E)] != 0 -> e = E fi;
      if
      :: mine(pub[AT(w, e)], w) && inst[w] == e && is_new(w, e) ->
        def[w] = issued; inst[w] = 0; ended[w] = e; held[w] = false;
        okpub[AT(w, e)] = wboot[w] * 4 + inc[w]; consume(pub, AT(w, e))
      :: mine(pub[AT(w, e)], w) && def[w] != 0 && seq_epoch[def[w]] == e ->
        okpub[AT(w, e)] = wboot[w] * 4 + inc[w]; consume(pub, AT(w, e))
      :: else -> pub[AT(w, e)] = 0
      fi; e = 0; read(w) }
  :: atomic { runs(w) && (abt[AT(w, 1)] != 0 || abt[AT(w, E)] != 0) &&
#ifdef EARLY_ACK
      true ->
#else
      writing[w] == 0 ->
#endif
      if :: abt[AT(w, 1)] != 0 -> e = 1 :: abt[AT(w, E)] != 0 -> e = E fi;
      if
      :: mine(abt[AT(w, e)], w) ->
        if :: ended[w] < e -> ended[w] = e :: else fi;
        if :: inst[w] == e -> inst[w] = 0 :: else fi;
        okabt[AT(w, e)] = wboot[w] * 4 + inc[w]
      :: else
      fi;
      abt[AT(w, e)] = 0; e = 0 }
  od
}

/* The operating system: starts what has died, continues what was stopped. */
proctype Life(byte w) {
end:
  do
  :: atomic { !alive[w] && inc[w] < LIVES -> inc[w]++; alive[w] = true }
  :: atomic { stopped[w] -> stopped[w] = false; read(w) }
  od
}

proctype Faults() {
  byte w;
end:
  do
  :: atomic { crashes > 0 -> crashes--; select(w : 0 .. (W - 1));
      if :: alive[w] && inc[w] < LIVES -> end_process(w) :: else fi; w = 0 }
  :: atomic { stops > 0 -> stops--; select(w : 0 .. (W - 1));
      if :: alive[w] -> stopped[w] = true :: else fi; w = 0 }
  :: atomic { blips > 0 -> blips--; select(w : 0 .. (W - 1)); /* its link closes */
      if
      :: in[w] && alive[w] && inc[w] < LIVES ->
        in[w] = false;
#ifndef PIPE_FENCES
        if :: JOINED -> lost[w] = true :: !JOINED -> end_process(w) fi
#endif
      :: else
      fi; w = 0 }
  od
}

/* Its grant has run out by the engine's clock; a heartbeat of before is older than that. */
inline fence(w) {
  lost[w] = false; in[w] = false;
  if
  :: JOINED -> grant[w] = false;
    if :: beat[w] == 1 -> beat[w] = 2 :: else fi
  :: !JOINED && alive[w] && inc[w] < LIVES -> end_process(w)
  :: else
  fi
}

/* Who is in: the engine's view, kept by supervisor and heartbeats. */
proctype Members(byte w) {
end:
  do
  :: atomic { in[w] && (!alive[w] || wboot[w] != boot) -> in[w] = false }
  :: atomic { alive[w] && !in[w] && !lost[w] && door_open ->
      in[w] = true;
      if
      :: wboot[w] != boot -> /* another engine's: all of it is dropped */
        wboot[w] = boot; def[w] = 0; inst[w] = 0; ended[w] = 0; grant[w] = false; held[w] = false;
        writing[w] = 0
      :: else ->
#ifdef NO_HOLD
        held[w] = false;
#else
        held[w] = (def[w] != visible);
#endif
        inst[w] = 0; writing[w] = 0
      fi;
      if :: ended[w] < epoch -> ended[w] = epoch :: else fi;
      if :: JOINED -> beat[w] = 1 :: else fi }
  :: atomic { JOINED && in[w] && alive[w] && wboot[w] == boot && beat[w] == 0 && !grant[w] ->
      beat[w] = 1 }
  :: atomic { lost[w] -> fence(w) }
  od
}

#define there(w) (in[w] && alive[w] && wboot[w] == boot && LIFE(w) == asked[w])
#define all_there (there(0) && there(1) && (W == 2 || there(W - 1)))
#define got(r, w) (r[AT(w, epoch)] != 0 && r[AT(w, epoch)] == asked[w])

inline engine_dies() {
  atomic {
    ecrashes--; boot++; visible = 0; pending = false; waited = false; phase = 0;
    request = false; answered = true; /* its connection is gone */
    /* What was issued may have reached the disk; if not, its number is free again. */
    if :: issued > durable -> if :: durable = issued :: issued = durable fi :: else fi;
    next_seq = durable + 1;
    w = 0;
    do
    :: w < W -> in[w] = false; lost[w] = false;
      if :: JOINED :: !JOINED && alive[w] -> alive[w] = false; inc[w] = inc[w];
        writing[w] = 0; inst[w] = 0; def[w] = 0; ended[w] = 0; wboot[w] = 0; grant[w] = false; beat[w] = 0; stopped[w] = false
      :: else fi;
      w++
    :: else -> break
    od;
    w = 0
  }
}

#define each_ask(f) \
  w = 0; do :: w < W -> f[AT(w, epoch)] = asked[w]; w++ :: else -> break od; w = 0

active proctype Engine() {
  byte w;
  atomic {
    do
    :: w < W -> inc[w] = 1; alive[w] = true; run Worker(w); run Life(w); run Members(w); w++
    :: else -> break
    od;
    w = 0; run Faults()
  }
  do
  :: epoch == E -> break
  :: epoch < E ->
    request = true; answered = false; phase = 1;
    /* start: every rank in, or the call is refused; the last ABORTs are over. */
    if
    :: atomic { in[0] && in[1] && in[W - 1] && wboot[0] == boot && wboot[1] == boot &&
         wboot[W - 1] == boot ->
         epoch++;
         do
         :: w < W -> asked[w] = LIFE(w);
           assert(!runs(w) || writing[w] == 0); /* nobody writes where the next one will */
           w++
         :: else -> break
         od; w = 0;
         each_ask(fin); phase = 2 }
    :: atomic { true -> epoch++; phase = 0; answered = true; request = false; goto next } /* 503 */
    :: ecrashes > 0 -> engine_dies(); goto next
    fi;
    do /* finish: all, or abort */
    :: atomic { got(okfin, 0) && got(okfin, 1) && got(okfin, W - 1) && all_there ->
         phase = 3; break }
    :: goto abort /* deadline, refusal, abort call, takeover, a rank down */
    :: ecrashes > 0 -> engine_dies(); goto next
    od;
    if /* a new engine waits one grant before its first change */
#ifndef NO_BOOT_WAIT
    :: atomic { !waited -> waited = true; w = 0;
         do
         :: w < W -> if :: wboot[w] != boot -> grant[w] = false; beat[w] = 0 :: else fi; w++
         :: else -> break
         od; w = 0 }
#endif
    :: atomic { true -> skip }
    fi;
#ifndef NO_BOOT_WAIT
    if :: waited :: else -> goto abort fi;
#endif
    if
    :: atomic { all_there -> issued = next_seq; assert(seq_epoch[issued] == 0 || issued > durable); /* I4 */
         seq_epoch[issued] = epoch; next_seq++; pending = true }
    :: goto abort
    fi;
    do
    :: atomic { durable = issued; break } /* a failed fsync is rolled forward */
#ifdef ABORT_ISSUED
    :: atomic { if :: durable = issued :: true fi; pending = false; goto abort }
#endif
    :: ecrashes > 0 -> engine_dies(); goto next
    od;
    atomic { each_ask(pub); phase = 4 }
    w = 0;
#ifdef VISIBLE_EARLY
    w = 1;
#endif
    do /* publish: each has confirmed or is fenced */
    :: w == W -> break
    :: w < W && got(okpub, w) -> w++
    :: atomic { w < W && (!alive[w] || LIFE(w) != asked[w]) -> w++ } /* it has exited */
#ifdef PIPE_FENCES
    :: atomic { w < W && !in[w] -> w++ }
#endif
    :: atomic { w < W && !got(okpub, w) -> fence(w); w++ }
    :: ecrashes > 0 -> engine_dies(); goto next
    od;
    atomic {
      w = 0; assert(issued == visible + 1 || visible == 0); /* I4 */
      visible = issued; pending = false; phase = 0; answered = true; request = false;
      do :: w < W -> read(w); w++ :: else -> break od; w = 0
    }
    goto next;
abort:
    atomic { phase = 5; answered = true; request = false; each_ask(abt) }
    w = 0;
    do /* until each has let go or is fenced */
#ifdef NO_WAIT_ACK
    :: w < W -> w++
#endif
    :: w == W -> break
    :: w < W && got(okabt, w) -> w++
    :: atomic { w < W && (!alive[w] || LIFE(w) != asked[w]) -> w++ }
    :: atomic { w < W && !got(okabt, w) -> fence(w);
         if :: JOINED && alive[w] -> inst[w] = inst[w] :: else fi; w++ }
    :: ecrashes > 0 -> engine_dies(); goto next
    od;
    atomic { assert(seq_epoch[durable] != epoch || durable == 0); /* I3: nothing aborted is recorded */
      w = 0; phase = 0 }
next:
    w = 0
  od
}

ltl idle { []<>(phase == 0) }
ltl answers { [](request -> <>answered) }
