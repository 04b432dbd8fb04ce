/* The NCCL id in the trainer's TCPStore, as vLLM's StatelessProcessGroup or a process
 * group of torch's puts it there. The store's client lives on a loop; the device thread
 * runs one of its own for this. */
#include "nccl_priv.h"
#include "weft/clock.h"
#include "weft/pickle.h"
#include "weft/runtime.h"
#include "weft/tcpstore.h"

#include <stdio.h>

enum {
  LOOK_MS = 5,
  SHORTLY_MS = 1000 /* an id that is there at once is there by then */
};

typedef struct meeting {
  weft_runtime *rt;
  weft_tcpstore *store;
  weft_alarm *look; /* at cancel and deadline */
  wefti_wait *wait;
  const wefti_nccl_init *init;
  wefti_look how;
  char phase[WEFTI_ID_KEYS * WEFTI_ID_KEY_MAX + 64];
  wefti_nccl_id id;
  weft_err err;
  weft_why why;
} meeting;

static void end(meeting *m, weft_err err, const char *text)
{
  weft_tcpstore_destroy(m->store);
  m->store = NULL;
  weft_alarm_destroy(m->look);
  m->look = NULL;
  m->err = err;
  if (err != WEFT_OK) {
    (void)weft_whyf(&m->why, err, "TCPStore of the trainer at %s:%u, %s: %.320s",
                    m->init->host, m->init->port, m->phase, text);
  }
  weft_runtime_stop(m->rt, 0);
}

static uint64_t left_ms(const meeting *m)
{
  const uint64_t now = weft_clock_ms();
  return m->wait->due_ms > now ? m->wait->due_ms - now : 1;
}

static void on_value(void *arg, const weft_tcpstore_answer *answer)
{
  meeting *m = arg;
  weft_why inner = { 0 };
  if (answer->err != WEFT_OK) {
    const bool later = answer->err == WEFT_E_TIMEOUT && m->how == WEFTI_LOOK_SHORTLY;
    end(m, later ? WEFT_E_NOT_YET : answer->err, answer->text);
    return;
  }
  (void)snprintf(m->phase, sizeof m->phase, "reading the NCCL id (%s)",
                 m->init->keys[answer->which]);
  weft_err err =
      weft_nccl_id_read(answer->value, answer->len, (uint8_t *)m->id.bytes, &inner);
  if (m->init->torch && answer->len != WEFT_NCCL_ID) {
    err = weft_whyf(&inner, WEFT_E_PROTO, "%zu bytes, torch's are %d", answer->len,
                    WEFT_NCCL_ID);
  }
  end(m, err, inner.text);
}

static void on_open(void *arg, const weft_tcpstore_answer *answer)
{
  meeting *m = arg;
  const wefti_nccl_init *init = m->init;
  if (answer->err != WEFT_OK || m->how == WEFTI_LOOK_LATER) {
    end(m, answer->err != WEFT_OK ? answer->err : WEFT_E_NOT_YET, answer->text);
    return;
  }
  const char *keys[WEFTI_ID_KEYS];
  for (size_t i = 0; i < init->key_count; i++) {
    keys[i] = init->keys[i];
  }
  (void)snprintf(m->phase, sizeof m->phase, "waiting for the NCCL id (%s%s%s)",
                 init->keys[0], init->key_count > 1 ? " or " : "",
                 init->key_count > 1 ? init->keys[1] : "");
  uint64_t ms = left_ms(m);
  ms = m->how == WEFTI_LOOK_SHORTLY && ms > SHORTLY_MS ? SHORTLY_MS : ms;
  const weft_err err =
      weft_tcpstore_get(m->store, keys, init->key_count, ms, on_value, m);
  if (err != WEFT_OK) {
    end(m, err, weft_strerror(err));
  }
}

static void on_look(void *arg)
{
  meeting *m = arg;
  weft_why inner = { 0 };
  const weft_err err = wefti_wait_turn(m->wait, &inner);
  if (err != WEFT_OK) {
    end(m, err, inner.text);
  } else {
    weft_alarm_start(m->look, LOOK_MS);
  }
}

static weft_err begin(meeting *m, bool joins, weft_why *why)
{
  weft_loop *loop = weft_runtime_loop(m->rt, 0);
  const weft_tcpstore_opts opts = { .size = sizeof opts,
                                    .host = m->init->host,
                                    .port = m->init->port,
                                    .timeout_ms = left_ms(m),
                                    .join = joins,
                                    .value_max = WEFT_NCCL_ID_VALUE_MAX };
  weft_err err = weft_alarm_create(loop, on_look, m, &m->look);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no timer: %s", weft_strerror(err));
  }
  weft_alarm_start(m->look, LOOK_MS);
  weft_why inner = { 0 };
  err = weft_tcpstore_open(loop, &opts, on_open, m, &m->store, &inner);
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, err, "TCPStore of the trainer at %s:%u: %.320s",
                                    m->init->host, m->init->port, inner.text);
}

weft_err wefti_nccl_id_fetch(const wefti_nccl_init *init, bool joins, wefti_look look,
                             wefti_wait *w, wefti_nccl_id *out, weft_why *why)
{
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  meeting m = { .init = init, .wait = w, .how = look, .phase = "connecting" };
  weft_err err = weft_runtime_create(&opts, &m.rt);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no loop for the TCPStore: %s", weft_strerror(err));
  }
  err = begin(&m, joins, why);
  if (err == WEFT_OK) {
    weft_runtime_run(m.rt);
    err = m.err;
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "%s", m.why.text);
    } else {
      *out = m.id;
    }
  }
  weft_alarm_destroy(m.look);
  weft_tcpstore_destroy(m.store);
  weft_runtime_destroy(m.rt);
  return err;
}
