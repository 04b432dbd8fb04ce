"""Bugs that the simulator must find: what the code does wrong, where, and the edits that
make it so.  Each edit is (file, text as it is, text of the mutant); the text must occur
exactly once, so that a table that has fallen behind the code is noticed."""

ENGINE = "actors/engine_"

MUTATIONS = [
    ("visible-before-confirmed", "a change is visible before the last PUBLISH is confirmed", [
        (ENGINE + "round.c",
         "  if (e->round.open > 0 && !(failed && !e->round.to_end)) {",
         "  if (e->round.open > (e->round.phase == PHASE_PUBLISH ? 1u : 0u) &&\n"
         "      !(failed && !e->round.to_end)) {")]),
    ("installed-kept-after-abort", "ABORT leaves what was installed in the store", [
        ("actors/device.c", "  wefti_store_drop(device->store, epoch);\n", "")]),
    ("ended-epoch-accepted", "frames of an epoch that has ended are taken in", [
        ("actors/worker_session.c", "  } else if (ask->epoch <= ended) {",
         "  } else if (ask->epoch == 0 && ended != 0) {")]),
    ("served-before-publish", "readers get a snapshot as soon as it is installed", [
        ("actors/weight_store.c", "    fill_locked(store, index, s, epoch);\n",
         "    fill_locked(store, index, s, epoch);\n    point_locked(store, index);\n")]),
    ("abort-after-issue", "abort_weight_update ends a session whose record was issued", [
        (ENGINE + "dispatch.c",
         "  if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {\n"
         "    engine_wait_for_turn(ctx, e, call);\n    return;\n  }\n  const char *reason",
         "  if (s == WEFTI_ABORTING) {\n"
         "    engine_wait_for_turn(ctx, e, call);\n    return;\n  }\n  const char *reason"),
        ("actors/session.c", "[WEFTI_COMMITTING] = BIT(IDLE),",
         "[WEFTI_COMMITTING] = BIT(IDLE) | BIT(ABORTING),")]),
    ("any-frame-grants", "any frame of the engine renews the grant", [
        ("actors/worker.c", "  if (!of_this_life(ctx, w, ask)) {\n    return;\n  }\n",
         "  if (!of_this_life(ctx, w, ask)) {\n    return;\n  }\n"
         "  wefti_store_grant(w->args.device->store,\n"
         "                    weft_boottime_ns(ctx) + WORKER_GRANT_NS);\n")]),
    ("grant-from-arrival", "a grant runs from the heartbeat's arrival, not from its stamp", [
        ("actors/worker.c", "m->echo_ns + (ns < WORKER_GRANT_NS",
         "weft_boottime_ns(ctx) + (ns < WORKER_GRANT_NS")]),
    ("returned-not-held", "a worker that comes back serves what it had, not the newest "
     "sequence with a record", [
        ("actors/worker.c", "  wefti_store_hold(w->args.device->store, behind);",
         "  (void)behind;\n  wefti_store_hold(w->args.device->store, false);")]),
    ("joins-not-held", "who joins during a commit is let in and given the visible sequence", [
        (ENGINE + "members.c", "  return (e->change.pending && !e->change.label) || "
         "e->session.state == WEFTI_PREPARED;",
         "  return e->session.state == WEFTI_PREPARED;")]),
    ("closed-pipe-is-fenced", "a lost link counts as a process that has exited", [
        ("actors/supervisor.c", "    supervisor_member_down(ctx, self, rank, false, why);",
         "    supervisor_member_down(ctx, self, rank, true, why);")]),
    ("fence-too-short", "the wait for a grant to run out is a quarter of what it must be", [
        (ENGINE + "members.c", "m->granted_at_ms + e->args.fence_ms",
         "m->granted_at_ms + e->args.fence_ms / 4")]),
    ("child-fenced-by-grant", "own children, which need no grant, count as fenced without "
     "one", [
        (ENGINE + "members.c", "  return m->kind != WEFT_MEMBER_CHILD;",
         "  (void)m;\n  return true;")]),
    ("abort-acked-early", "ABORT is acknowledged while the device thread still writes", [
        ("actors/worker_session.c",
         "    wait_for_abort(ctx, w, ask);\n    worker_drop(ctx, w, ask->epoch);",
         "    worker_ok(ctx, w, ask);\n    worker_drop(ctx, w, ask->epoch);")]),
    ("label-counts-early", "the number of a label is taken before its record is written", [
        (ENGINE + "commit.c", "  next->sequence = e->visible.sequence + 1;\n"
         "  next->at_ms = weft_wall_ms(ctx);\n  next->declared = true;",
         "  next->sequence = ++e->visible.sequence;\n"
         "  next->at_ms = weft_wall_ms(ctx);\n  next->declared = true;")]),
    ("label-does-not-wait", "a label does not wait for the change under way", [
        (ENGINE + "dispatch.c",
         "  if (e->change.pending || s == WEFTI_FINISHING || s == WEFTI_PREPARED ||\n"
         "      s == WEFTI_COMMITTING || engine_inplace_label_waits(e)) {",
         "  if (s == WEFTI_COMMITTING && e->waiting_count > 8) {")]),
    ("go-before-all-accepted", "GO is sent when all but one have accepted", [
        (ENGINE + "round.c",
         "  if (e->round.open > 0 && !(failed && !e->round.to_end)) {",
         "  if (e->round.open > (e->round.phase == PHASE_ACCEPT ? 1u : 0u) &&\n"
         "      !(failed && !e->round.to_end)) {")]),
    ("publish-refused-twice", "a PUBLISH that was done is not confirmed again", [
        ("actors/worker_session.c", "  if (ask->sequence <= st.weights_sequence) {",
         "  if (ask->sequence < st.weights_sequence) {")]),
    ("live-caller-taken-over", "a new init takes over while a living caller's call runs", [
        (ENGINE + "dispatch.c", "  if (e->call != NULL && engine_call_wanted(e->call)) {",
         "  if (e->call != NULL && e->call->caller == 0) {")]),
    ("record-not-awaited", "PUBLISH is sent without waiting for the record", [
        (ENGINE + "commit.c", "  if (e->args.journal == 0) {\n    engine_record_done",
         "  if (e->args.journal != 1) {\n    engine_record_done")]),
    ("fsync-failure-ignored", "a failed fsync counts as a durable record", [
        (ENGINE + "commit.c", "  e->change.corr = 0;\n  if (err != WEFT_OK) {",
         "  e->change.corr = 0;\n  if (err != WEFT_OK && text == NULL) {")]),
    ("not-ended-at-adoption", "what was open before a fence stays open after it", [
        ("actors/worker.c", "  end_before_adoption(ctx, w, ask->epoch);",
         "  (void)end_before_adoption;")]),
    ("kept-not-verified", "what a worker's last life left is served without a look at its bytes", [
        ("actors/device_rehash.c", "    if (!weft_digest_equal(", "    if (count > 8 && !weft_digest_equal(")]),
    ("kept-any-set", "what is offered is served whatever the engine has named", [
        ("actors/device_recall.c",
         "(got[0] != digest[0] || got[1] != digest[1])", "got[0] == 0")]),
    ("lent-any-set", "what another rank lends is served whatever the engine has named", [
        ("actors/device_fetch.c",
         "(got[0] != digest[0] || got[1] != digest[1])", "(got[0] == 0)")]),
    ("mapping-counts-as-ready", "a worker that maps its weights again counts as ready", [
        (ENGINE + "members.c", "  const bool has_it = has_what_is_visible(e, m);",
         "  const bool has_it = has_what_is_visible(e, m) ||\n"
         "                      m->reported.phase == WEFT_WORKER_MAPPING;")]),
    ("kept-older-sequence", "a worker's weights come back under the number before", [
        ("actors/worker_recall.c", "  w->recall.sequence = adopt->sequence;",
         "  w->recall.sequence = adopt->sequence > 1 ? adopt->sequence - 1 : 1;")]),
    ("marked-after-the-bytes", "in place, store and slabs are marked when the bytes are there", [
        ("actors/device_inplace.c", "  if (s->overwrites) {\n    s->plan->on_write = on_write;",
         "  if (s->overwrites && s->plan->count == 0) {\n    s->plan->on_write = on_write;"),
        ("actors/device_session.c",
         "  if (err != WEFT_OK && w->late) {",
         "  if (err == WEFT_OK && s->overwrites) {\n"
         "    wefti_store_dirty(device->store, s->epoch);\n"
         "    weft_memory_mark(device->memory, 0, true);\n  }\n"
         "  if (err != WEFT_OK && w->late) {")]),
    ("poison-cleaned-up", "ABORT takes back that bytes were written over in place", [
        ("actors/weight_store.c",
         "    retire_locked(store, index);\n  }\n  unlock(store);\n  wefti_store_reap(store);",
         "    retire_locked(store, index);\n  }\n  store->dirty = 0;\n"
         "  hold_locked(store, store->held & ~(unsigned)HOLD_DIRTY);\n"
         "  unlock(store);\n  wefti_store_reap(store);"),
        ("actors/weight_store.c",
         "void wefti_store_drop(weft_store *store, uint64_t epoch)\n{",
         "static void hold_locked(weft_store *store, unsigned held);\n"
         "void wefti_store_drop(weft_store *store, uint64_t epoch)\n{")]),
    ("half-written-named", "a label is taken while bytes are written over in place", [
        (ENGINE + "dispatch.c", "  } else if (engine_inplace_unfit(e, why, sizeof why)) {",
         "  } else if (e->inplace.poisoned != 0 && engine_inplace_unfit(e, why, sizeof why)) {")]),
    ("poison-not-reported", "the engine does not hear from ABORT's answer that a rank is poisoned", [
        (ENGINE + "round.c", "  if (r->state == REPLY_OK && e->round.phase == PHASE_ABORT) {",
         "  if (r->state == REPLY_FAILED && e->round.phase == PHASE_ABORT) {")]),
    ("readers-not-awaited", "in place, a session opens while readers hold what it writes over", [
        ("actors/worker_drain.c", "  if (readers == 0) {\n", "  if (readers == 0 || true) {\n")]),
    ("key-forgotten", "a call is run again although its key was answered", [
        (ENGINE + "call.c", "  slot->done = true;\n  if (slot->answer == NULL) {",
         "  slot->done = true;\n  if (slot->done) {")]),
    ("draft-set-not-ended", "a main push brings a rank back that has no draft set, the others keep theirs", [
        (ENGINE + "update.c", "  e->session.alone = !call->draft && engine_set_is_lost(e, SET_DRAFT);",
         "  e->session.alone = false;"),
        (ENGINE + "sets.c", "} else if (kept != wanted) {", "} else if (kept > wanted) {")]),
    ("draft-push-without-main", "a draft push brings a rank back that has no main set", [
        (ENGINE + "dispatch.c", "s == WEFTI_IDLE && call->draft && engine_set_is_lost(e, SET_MAIN)",
         "s == WEFTI_IDLE && call->draft && e->world == 0"),
        (ENGINE + "sets.c", "} else if (kept != wanted) {", "} else if (kept > wanted) {")]),
    ("draft-push-drops-main", "a session's result holds its own set only", [
        ("actors/device_install.c", "if (!s->foreign && (own || !s->alone)) {",
         "if (!s->foreign && own) {")]),
    ("tidied-while-draining", "in place, a heartbeat uses the device thread while a start waits", [
        ("actors/worker_job.c", "  return w->corr == 0 && !w->draining && ", "  return w->corr == 0 && ")]),
    ("dead-engine-adopts", "a worker follows whichever engine's adoption comes last", [
        ("actors/leader.c", "  return l->boot == 0 || boot == l->boot || lives;",
         "  return lives || boot != 0;")]),
    ("answer-without-op", "an answer is matched without its operation id", [
        (ENGINE + "round.c", " ||\n      env->op != r->op) {", ") {")]),
    # The rule of rounds alone does no harm: before the record is issued every rank is looked
    # at once more.  Both are taken away.
    ("absent-rank-finishes", "FINISH goes through although a rank is absent", [
        (ENGINE + "round.c", "  return phase == PHASE_PUBLISH || phase == PHASE_ABORT;",
         "  return phase == PHASE_PUBLISH || phase == PHASE_ABORT || "
         "phase == PHASE_FINISH;"),
        (ENGINE + "commit.c",
         "    if (engine_member_usable(m) && m->incarnation == r->incarnation &&\n"
         "        r->state == REPLY_OK) {",
         "    if (m->incarnation == r->incarnation && r->state == REPLY_OK) {")]),
    ("repeat-taken-over", "a call counts as left although a repeat waits for its answer", [
        (ENGINE + "idem.c",
         "  return !call->caller_gone || (call->idem != NULL && call->idem->waiter_count > 0);",
         "  return !call->caller_gone;")]),
    ("expected-not-passed", "the acceptor does not pass on expected_version of a finish", [
        ("actors/acceptor_message.c",
         ".version = text_of(&f->version),   .has_expected = f->expected.given,",
         ".version = text_of(&f->version),   .has_expected = false,")]),
    ("key-not-passed", "the acceptor does not pass on Idempotency-Key", [
        ("actors/acceptor_message.c", ".idem_key = (rq)->call->idem_key,",
         ".idem_key = { NULL, 0 },")]),
    ("session-not-passed", "the acceptor does not pass on Weft-Session", [
        ("actors/acceptor_message.c", ".session = (rq)->call->session",
         ".session = { NULL, 0 }")]),
    ("abort-of-anything", "an abort while no session is open does not look at the one that it names", [
        (ENGINE + "dispatch.c",
         "    if (call->session_epoch == 0 || engine_session_was_aborted(e, call)) {",
         "    if (call->session_epoch < UINT64_MAX) {")]),
    ("timeout-not-passed", "timeout_s is the acceptor's own deadline only", [
        ("actors/acceptor_message.c", ".timeout_ms = (rq)->query->timeout_ms,",
         ".timeout_ms = 0,")]),
    ("front-end-gives-up-first", "the acceptor's deadline comes before the engine's", [
        ("actors/acceptor.c", "rq->query->timeout_ms + GRACE_MS",
         "rq->query->timeout_ms")]),
    ("answered-is-open", "what was answered is answered again when the acceptor ends", [
        ("actors/acceptor_open.c", "  close_gap(table, i);\n  table->count--;\n  return true;",
         "  table->count--;\n  return true;")]),
    ("hang-up-not-told", "the engine is not told that a caller has hung up", [
        ("actors/acceptor.c", "  if (!wefti_open_mark_gone(&self->open, gone->peer)) {",
         "  if (gone->peer != 0) {")]),
    ("hang-up-told-once", "the engine is told of a hang-up once, maybe before the call", [
        ("actors/acceptor.c", "  if (self->gone_timer == 0) {\n"
         "    self->gone_timer = weft_timer_start(ctx, GONE_MS, 0);\n  }\n", "")]),
    ("silence-is-failure", "a change that the engine does not answer for is told as not "
     "committed", [
        ("actors/acceptor_reply.c",
         "    return asked ? WEFT_OUTCOME_UNKNOWN : WEFT_OUTCOME_NOT_COMMITTED;",
         "    return WEFT_OUTCOME_NOT_COMMITTED;")]),
    ("cut-is-failure", "a change whose link to the engine broke is told as not committed", [
        ("actors/relay.c",
         "    done.outcome = sent ? WEFT_OUTCOME_UNKNOWN : WEFT_OUTCOME_NOT_COMMITTED;",
         "    done.outcome = WEFT_OUTCOME_NOT_COMMITTED;")]),
    ("refused-is-asked", "a body that is refused reaches the engine all the same", [
        ("actors/acceptor_body.c",
         "    return invalid(rd, \"string_type\", key, \"Input should be a valid string\", span);\n"
         "  }\n  char says[64];",
         "    return WEFT_OK;\n  }\n  char says[64];")]),
]

# The same with weft-sim --fleet.
FLEET_MUTATIONS = [
    ("shown-when-published", "a replica shows what it has published before the coordinator "
     "says so", [
        (ENGINE + "upstream.c", "  if (up->seen >= up->next_sequence) {", "  {"),
        (ENGINE + "upstream.c", "  } else {\n    engine_event_status(ctx, e);\n  }\n}",
         "  }\n}")]),
    ("reads-not-held", "a replica that has a change answers reads before it knows that it is "
     "visible", [
        (ENGINE + "hold.c", "  return engine_upstream_unshown(e) &&",
         "  return engine_upstream_unshown(e) && e->world == 0 &&")]),
    ("held-for-ever", "reads that wait for the coordinator's word have no end of their own", [
        (ENGINE + "hold.c", "  if (held->timer != timer || held->count == 0) {",
         "  if (held->timer != timer || timer != 0) {")]),
    ("older-told-to-all", "a heartbeat that says that a change is not visible yet lets go of reads "
     "that began after it was made", [
        (ENGINE + "grant.c", "    engine_hold_not_shown(ctx, e, m->echo_ns);",
         "    engine_hold_not_shown(ctx, e, UINT64_MAX);")]),
    ("older-than-before", "a replica that was behind before a change tells what it had then", [
        (ENGINE + "grant.c", "  if (m->visible != 0 && m->visible == up->before &&",
         "  if (m->visible != 0 && m->visible < up->next_sequence &&")]),
    ("vote-taken-back", "a replica that is cut off aborts what it has voted for", [
        (ENGINE + "grant.c", "  return e->session.upstream && open && s != WEFTI_PREPARED;",
         "  return e->session.upstream && open;")]),
    ("presumed-commit", "a coordinator that has no record of a change says committed", [
        (ENGINE + "fleet.c", "                                       .committed = r != NULL,",
         "                                       .committed = 1,")]),
    ("grant-not-nested", "ranks may serve for longer than their engine", [
        (ENGINE + "grant.c", "  return left < e->args.grant_ms ? (uint32_t)left : e->args.grant_ms;",
         "  return left == 0 ? 0 : e->args.grant_ms;")]),
    ("dead-coordinator-adopts", "a replica follows whichever coordinator's adoption comes last", [
        ("actors/leader.c", "  return l->boot == 0 || boot == l->boot || lives;",
         "  return lives || boot != 0;")]),
    ("does-not-settle", "a restarted coordinator goes on while earlier grants run", [
        (ENGINE + "fleet.c", "         weft_now_ms(ctx) >= e->boot_ms + e->args.fence_ms;",
         "         weft_now_ms(ctx) >= e->boot_ms;")]),
    ("place-not-told", "a rank that came in before its engine was adopted keeps the number it "
     "was told then", [
        (ENGINE + "members.c", "  if (engine_member_usable(m) && m->dp_index != e->args.dp_index &&",
         "  if (!e->up.placed && m->dp_index != e->args.dp_index &&")]),
]
