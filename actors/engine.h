/* engine.h -- private to the engine_*.c files: the parts that engine_core is made of and
 * what they do for each other.  Not here: its state (engine_state.h).  Everything runs on
 * the engine's loop.
 *
 *   engine_core.c     the actor: its messages, its timers
 *   engine_dispatch.c who may do what now
 *   engine_wait.c     calls that wait for their turn
 *   engine_call.c     one client call from arrival to its one answer
 *   engine_idem.c     Idempotency-Key
 *   engine_update.c   the walk: init, start, update, finish; abort
 *   engine_commit.c   … decide → record → publish → visible
 *   engine_round.c    one message to every rank, gathered under a deadline
 *   engine_members.c  who is in, adoption, fencing
 *   engine_beat.c     heartbeats and grants
 *   engine_status.c   the status as JSON
 *   engine_event.c    what the publisher is told
 *   engine_query.c    questions of clients
 *   engine_hold.c     … that wait, in a member of a fleet
 *   engine_check.c    … that only workers can answer
 *   engine_rearm.c    timers that found no memory, again
 *   engine_pause.c    the pause flag
 *   engine_metrics.c  counters
 *   engine_upstream.c a member of a fleet: what its coordinator asks
 *   engine_said.c     … its answers, and again to repeats
 *   engine_grant.c    … adoption, grants, being cut off
 *   engine_vote.c     … the vote, and how a doubt ends
 *   engine_fleet.c    a coordinator: its replicas, their doubts
 *   engine_cast.c     … what all replicas are told at once
 *   engine_lend.c     weights of a joined rank that came back, from another rank
 *   engine_inplace.c  staging in place: readers paused, weights poisoned
 *   engine_digest.c   what all ranks have installed, as one digest
 *   engine_sets.c     the main and the draft model's set of weights
 *   engine_history.c  what was committed or aborted, for the journal and for people */
#ifndef WEFT_ACTORS_ENGINE_H
#define WEFT_ACTORS_ENGINE_H

#include "agreed.h"
#include "engine_state.h"

/* ---- engine_core.c */
void engine_move(weft_ctx *ctx, engine *e, wefti_session_state to);

/* ---- engine_dispatch.c */
void engine_dispatch(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
/* Answers the call under way, which will come to nothing. */
void engine_fail_running(weft_ctx *ctx, engine *e, const char *why);
void engine_cache_reset(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */

/* ---- engine_wait.c */
void engine_wait_for_turn(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
/* Something has ended: try who waits. */
void engine_wake_waiting(weft_ctx *ctx, engine *e);
/* After every message: a start that waited for weights may have waited long enough. */
void engine_wait_look(weft_ctx *ctx, engine *e);
void engine_call_due(weft_ctx *ctx, engine *e, uint64_t timer);
void engine_caller_gone(weft_ctx *ctx, engine *e, uint64_t caller);
/* This engine ends: who asked for a change that it has not begun to record hears so. */
void engine_wait_over(weft_ctx *ctx, engine *e);
/* The coordinator's calls that wait will not be. */
void engine_wait_drop_upstream(weft_ctx *ctx, engine *e, const char *why);

/* ---- engine_sets.c */
const char *engine_set_name(engine_which which); /* "main", "draft" */
/* The set is visible, but not with every rank that would have to keep it. */
bool engine_set_is_lost(const engine *e, engine_which which);
/* A rank is about to get its weights again without a push. */
bool engine_sets_come_back(weft_ctx *ctx, const engine *e);
bool engine_set_is_live(const engine *e, weft_str name); /* is it visible? */
/* After a FINISH that all have answered: is each set the same on every rank?  A rank that
 * has lost its weights cannot know which tensors did not come.  false after the session
 * was dropped. */
bool engine_sets_are_whole(weft_ctx *ctx, engine *e);
void engine_sets_next(const engine *e, engine_visible *next);
/* Takes change's sources: its weights have become visible. */
void engine_sets_visible(weft_ctx *ctx, engine *e, engine_change *change);
void engine_jw_set_digest(weft_json_writer *w, const engine *e, engine_which which);
void engine_jw_draft(weft_json_writer *w, const engine *e); /* of the status */

/* ---- engine_rearm.c; after every message */
void engine_rearm(weft_ctx *ctx, engine *e);

/* ---- engine_call.c */
/* CALL_KINDS: msg is no call. */
engine_call_kind engine_call_kind_of(const weft_msg *msg);
/* A call made from a client message; NULL after having answered (bad, repeat, no memory).
 */
engine_call *engine_call_open(weft_ctx *ctx, engine *e, const weft_msg *msg);
/* The one answer.  Takes call. */
void engine_answer_call(weft_ctx *ctx, engine *e, engine_call *call,
                        const engine_answer *a);
void engine_answer_ok(weft_ctx *ctx, engine *e, engine_call *call);
void engine_answer_err(weft_ctx *ctx, engine *e, engine_call *call, weft_err err,
                       const char *fmt, ...) WEFT_PRINTF(5, 6);
/* Answers the client now but keeps the call: its work goes on. */
void engine_answer_early(weft_ctx *ctx, engine *e, engine_call *call,
                         const engine_answer *a);
void engine_call_free(weft_ctx *ctx, engine *e, engine_call *call);
const char *engine_call_name(engine_call_kind kind); /* "update_weights", … */
bool engine_call_of_session(engine_call_kind kind);  /* or init: up to finish */
bool engine_call_changes(engine_call_kind kind); /* makes a change, or a part of one */
/* The deadline of a call of this kind that names none. */
uint32_t engine_call_patience(const engine *e, engine_call_kind kind);
uint64_t engine_call_left_ms(weft_ctx *ctx, const engine_call *call); /* at least 1 */
/* "rank", or a coordinator's "replica". */
const char *engine_unit(const engine *e);
void engine_reply_to(weft_ctx *ctx, engine *e, weft_return ret, engine_call_kind kind,
                     uint64_t started_ms, const engine_answer *a);

/* ---- engine_idem.c */
weft_err engine_idem_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_idem_fini(weft_ctx *ctx, engine *e);
void engine_idem_clear(engine_idem *slot);
/* true: call may go on (with its slot taken); false: it has been answered and freed, or
 * its answer will come with the one under way. */
bool engine_idem_admit(weft_ctx *ctx, engine *e, engine_call *call, weft_str key,
                       uint64_t hash);
bool engine_idem_due(weft_ctx *ctx, engine *e,
                     uint64_t timer); /* false: not a waiter's */
/* The repeats of caller, whose connection closed, wait no more. */
void engine_idem_gone(weft_ctx *ctx, engine *e, uint64_t caller);
/* false: neither its caller nor a repeat under its key is there to hear its answer. */
bool engine_call_wanted(const engine_call *call);

/* ---- engine_update.c; each takes call */
void engine_init_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_start_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_start_round(weft_ctx *ctx, engine *e);
void engine_update_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_finish_begin(weft_ctx *ctx, engine *e, engine_call *call);
/* The operation under way failed: answer it, then abort the session. */
void engine_op_failed(weft_ctx *ctx, engine *e, const engine_answer *a);
/* Ends session or init.  by: the call that wanted it, answered when done; NULL = nobody.
 * The operation under way, if any, must have been answered before. */
void engine_abort_begin(weft_ctx *ctx, engine *e, engine_call *by, const char *reason);
/* The round of ACCEPT is over and the others have accepted, too. */
void engine_update_go(weft_ctx *ctx, engine *e);

/* ---- engine_commit.c */
uint64_t engine_commit_reserve_ms(const engine_call *call); /* kept of a finish's time */
/* Every rank has it: decide, or vote, as soon as no earlier life's grant runs. */
void engine_installed(weft_ctx *ctx, engine *e);
/* Takes what is installed as the next change under this version.  From FINISHING or
 * PREPARED; nothing aborts any more. */
void engine_commit_begin(weft_ctx *ctx, engine *e, const char *version, bool declared);
/* The change is with all who are to have it. */
void engine_become_visible(weft_ctx *ctx, engine *e, const char *fenced);
/* Adds rank to the list that a change becomes visible with ("1,3"), if there is room. */
void engine_fenced_add(char *list, size_t cap, uint32_t rank);
void engine_record_done(weft_ctx *ctx, engine *e, weft_err err, const char *text);
void engine_record_again(weft_ctx *ctx, engine *e);
/* The deadline of a call whose record was issued: it is answered "unknown", its work goes
 * on. */
void engine_op_due(weft_ctx *ctx, engine *e, engine_call *call);
void engine_label_begin(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */

/* ---- engine_round.c */
void engine_round_begin(weft_ctx *ctx, engine *e, engine_phase phase, uint64_t timeout_ms,
                        engine_round_fn *done);
void engine_round_cancel(weft_ctx *ctx, engine *e);
/* true: msg was an answer of the round. */
bool engine_round_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);
/* rank went down: what it was asked fails; PUBLISH and ABORT go on until it is fenced. */
void engine_round_lost(weft_ctx *ctx, engine *e, uint32_t rank, const char *why);
/* rank's incarnation is certainly gone: PUBLISH and ABORT need not wait for it. */
void engine_round_fenced(weft_ctx *ctx, engine *e, uint32_t rank);
/* Describes what failed: message, culprits, phase. */
void engine_round_blame(weft_ctx *ctx, const engine *e, engine_answer *a, char *culprits,
                        size_t cap);
const char *engine_phase_name(engine_phase phase);

/* ---- engine_members.c */
weft_err engine_members_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_on_member_up(weft_ctx *ctx, engine *e, const weft_member_up *up);
void engine_on_member_down(weft_ctx *ctx, engine *e, const weft_member_down *down);
void engine_fence(weft_ctx *ctx, engine *e, uint32_t rank, const char *why);
void engine_fence_due(weft_ctx *ctx, engine *e, uint32_t rank, uint64_t timer);
void engine_admit_arrivals(weft_ctx *ctx, engine *e); /* what kept them out has ended */
void engine_member_published(engine *e, uint32_t rank);
/* Starts again what timers found no memory, and tells a rank of another dp_index. */
void engine_members_rearm(weft_ctx *ctx, engine *e);
bool engine_member_usable(const engine_member *m); /* can be asked something */
/* Its heartbeat was answered, or its adoption; m->reported says what with. */
void engine_member_heard(weft_ctx *ctx, engine *e, engine_member *m,
                         uint32_t phase_before);
/* Tells m, or anew, who we are.  Returns the question's number. */
uint64_t engine_member_adopt(weft_ctx *ctx, engine *e, engine_member *m);
/* false and the reason when not all ranks are in and have what is visible. */
bool engine_ready(weft_ctx *ctx, const engine *e, char *reason, size_t cap);

/* ---- engine_beat.c */
void engine_beat(weft_ctx *ctx, engine *e, uint32_t rank);
/* Everybody at once; a replica that is just being asked, right after. */
void engine_beat_all(weft_ctx *ctx, engine *e);
bool engine_beat_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);

/* ---- engine_pause.c */
void engine_pause_begin(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
/* Of a coordinator also when any replica that is in says so: an earlier life of the
 * coordinator may have paused it, or its own clients.  *since_ms: when that changed. */
bool engine_is_paused(const engine *e, uint64_t *since_ms);
void engine_pause_due(weft_ctx *ctx, engine *e, uint64_t timer);
/* A pause has begun or ended, here or on a replica. */
void engine_pause_arm(weft_ctx *ctx, engine *e);
/* false: call was answered, it needs a pause first. */
bool engine_pause_lets_start(weft_ctx *ctx, engine *e, engine_call *call);
/* As GET /ready says: all ranks are ready, and nobody has forgotten to resume. */
bool engine_serves(weft_ctx *ctx, const engine *e, char *reason, size_t cap);

/* ---- engine_inplace.c; of no effect with shadow staging */
/* The session has begun to start: pauses readers, waits for those of this process, then
 * engine_start_round. */
void engine_inplace_start(weft_ctx *ctx, engine *e);
void engine_inplace_drain_due(weft_ctx *ctx, engine *e, uint64_t timer);
void engine_inplace_rearm(weft_ctx *ctx, engine *e);
void engine_inplace_end(weft_ctx *ctx, engine *e);    /* the session was aborted */
void engine_inplace_healed(weft_ctx *ctx, engine *e); /* it is visible, all is whole */
/* m says that epoch wrote over what it had; 0 = nobody did. */
void engine_inplace_report(weft_ctx *ctx, engine *e, engine_member *m, uint64_t epoch);
/* true, and why: nobody may generate from what the workers hold, or name it. */
bool engine_inplace_unfit(const engine *e, char *reason, size_t cap);
void engine_inplace_why(const engine *e, char *out, size_t cap); /* when poisoned */
/* All have accepted and are told to move bytes. */
void engine_inplace_go(engine *e);
/* A label and bytes that are written over what it names do not run beside each other. */
bool engine_inplace_update_waits(const engine *e);
bool engine_inplace_label_waits(const engine *e);
/* The label that has just become visible names what has been poisoned since its record
 * was issued: nothing is named.  false: all is well. */
bool engine_inplace_unnamed(engine *e);
uint64_t engine_inplace_resume(const engine *e); /* of a heartbeat */
/* "weights and version are unchanged", or what is true in place. */
const char *engine_unchanged(const engine *e);

/* ---- engine_ended.c */
/* false: no session of any engine. */
bool engine_session_parse(weft_str id, uint64_t *boot, uint64_t *epoch);
/* Fills session_epoch from the call's Weft-Session.  false after the answer: it is
 * nobody's, or of a life before this one. */
bool engine_session_is_known(weft_ctx *ctx, engine *e, engine_call *call, weft_str id);
/* " (session … was aborted: …)" for a caller that comes back to a session that is no
 * more: the one that it names, else the newest.  "" when nothing is known. */
const char *engine_session_fate(const engine *e, const engine_call *call, char *out,
                                size_t cap);
/* The session that the call names was, by whomever. */
bool engine_session_was_aborted(const engine *e, const engine_call *call);

/* ---- engine_status.c */
weft_buf *engine_status_json(weft_ctx *ctx, const engine *e); /* NULL = out of memory */
const char *engine_member_state_name(engine_member_state state);
/* The same as others are told it: a rank whose bytes are written over in place holds
 * nothing that it could be ready with. */
const char *engine_member_shown(const engine *e, const engine_member *m);
void engine_session_id(const engine *e, uint64_t epoch, char *out, size_t cap);
/* … of any life, also of a coordinator's. */
void engine_session_of(uint64_t boot, uint64_t epoch, char *out, size_t cap);

void engine_jw_hex64(weft_json_writer *w, const char *key, uint64_t v);
/* null as long as there are no weights (sequence 0). */
void engine_jw_digest(weft_json_writer *w, const char *key, uint64_t sequence,
                      uint64_t hi, uint64_t lo);
void engine_jw_time(weft_json_writer *w, const char *key, uint64_t unix_ms);

/* ---- engine_event.c */
void engine_event_commit(weft_ctx *ctx, engine *e, const engine_visible *previous,
                         bool label, engine_which which);
void engine_event_session(weft_ctx *ctx, engine *e, const char *what, const char *reason);
void engine_event_worker(weft_ctx *ctx, engine *e, const engine_member *m,
                         const char *what);
void engine_event_status(weft_ctx *ctx, engine *e);

/* ---- engine_digest.c; after a round of FINISH */
/* false after the session was dropped: replicas that were sent the same hold other bytes.
 */
bool engine_digests_agree(weft_ctx *ctx, engine *e);
/* false after the session was dropped: the caller knows what it should have become. */
bool engine_digest_is_wanted(weft_ctx *ctx, engine *e);
/* Shards: one number for the set of them, in rank order.  whole: of the whole snapshot,
 * not of the session's set. */
void engine_set_digest(const engine *e, bool whole, uint64_t *hi, uint64_t *lo);

/* ---- engine_history.c */
weft_err engine_history_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_history_fini(weft_ctx *ctx, engine *e);
void engine_history_begun(weft_ctx *ctx, engine *e);
void engine_history_commit(weft_ctx *ctx, engine *e, const engine_change *change);
void engine_history_aborted(weft_ctx *ctx, engine *e, const char *operation,
                            const char *reason);
/* How a vote of an earlier life ended. */
void engine_history_resolved(weft_ctx *ctx, engine *e, const char *reason);
/* The commit of that session, NULL = there was none.  *reaches false: it may be older
 * than what is kept. */
const struct weft_journal_record *engine_history_find(const engine *e, uint64_t boot,
                                                      uint64_t epoch, bool *reaches);
/* How that session, epoch > 0, ended; NULL = not known.  *known false: nothing is known
 * of that life at all. */
const struct weft_journal_record *engine_history_ended(const engine *e, uint64_t boot,
                                                       uint64_t epoch, bool *known);
/* How the newest session that is over ended; NULL = there is none. */
const struct weft_journal_record *engine_history_newest_end(const engine *e);
weft_buf *engine_history_json(const engine *e, uint64_t limit);
bool engine_history_limit(weft_str arg, uint64_t *out); /* false: no such number */
/* What the session loads from, call by call. */
void engine_sources_reset(weft_ctx *ctx, engine *e);
void engine_sources_add(weft_ctx *ctx, engine *e, const weft_buf *info);
weft_buf *engine_sources_of_finish(engine *e); /* NULL = cannot be had again */

/* ---- engine_query.c */
void engine_query(weft_ctx *ctx, engine *e, const weft_client_query *q);
void engine_query_answer(weft_ctx *ctx, engine *e, const engine_read *read);

/* ---- engine_check.c */
void engine_check_begin(weft_ctx *ctx, engine *e, engine_call *call);
/* The coordinator's question; takes call, which is not a client's. */
void engine_check_upstream(weft_ctx *ctx, engine *e, engine_call *call);
/* The live table of the first rank, for a client's query. */
void engine_check_weights(weft_ctx *ctx, engine *e, weft_return ret);
bool engine_check_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);
void engine_check_fini(weft_ctx *ctx, engine *e);

#endif /* WEFT_ACTORS_ENGINE_H */
