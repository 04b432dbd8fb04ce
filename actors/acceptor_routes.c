#include "acceptor_priv.h"

#include <assert.h>

#define POST(path, flags, id)                                                            \
  {                                                                                      \
    "POST", path, WEFT_HTTP_DEV | (flags), WEFTI_ROUTE_##id                              \
  }
#define GET(path, flags, id)                                                             \
  {                                                                                      \
    "GET", path, flags, WEFTI_ROUTE_##id                                                 \
  }

/* Everything that mutates, and all that tells of weights, exists in dev mode only.  The
 * metrics are numbers for who runs the server: there without dev mode, behind the token.
 */
static const weft_http_route routes[] = {
  POST("/init_weight_transfer_engine", WEFT_HTTP_BODY, INIT),
  POST("/shutdown_weight_transfer_engine", 0, SHUTDOWN),
  POST("/start_weight_update", 0, START),
  POST("/start_draft_weight_update", 0, START_DRAFT),
  POST("/update_weights", WEFT_HTTP_BODY, UPDATE),
  POST("/finish_weight_update", WEFT_HTTP_BODY, FINISH),
  POST("/update_weight_version", WEFT_HTTP_BODY, LABEL),
  POST("/pause", 0, PAUSE),
  POST("/resume", 0, RESUME),
  POST("/weight_checker", WEFT_HTTP_BODY, CHECKER),
  POST("/reset_prefix_cache", 0, RESET_PREFIX),
  POST("/reset_mm_cache", 0, RESET_MM),
  POST("/reset_encoder_cache", 0, RESET_ENCODER),
  POST("/abort_weight_update", WEFT_HTTP_BODY, ABORT),
  POST("/abort_requests", WEFT_HTTP_BODY, ABORT_REQUESTS),
  POST("/resolve_weight_update", WEFT_HTTP_BODY, RESOLVE),
  GET("/weight_info", WEFT_HTTP_DEV, INFO),
  GET("/is_paused", WEFT_HTTP_DEV, IS_PAUSED),
  GET("/get_world_size", WEFT_HTTP_DEV, WORLD_SIZE),
  GET("/weight_status", WEFT_HTTP_DEV, STATUS),
  GET("/weights", WEFT_HTTP_DEV, WEIGHTS),
  GET("/weight_versions", WEFT_HTTP_DEV, VERSIONS),
  GET("/weight_events", WEFT_HTTP_DEV | WEFT_HTTP_STREAM, EVENTS),
  GET("/health", WEFT_HTTP_OPEN, HEALTH),
  GET("/ready", WEFT_HTTP_OPEN, READY),
  GET("/version", WEFT_HTTP_OPEN, VERSION),
  GET("/metrics", 0, METRICS),
};
static_assert(sizeof routes / sizeof routes[0] == WEFTI_ROUTE_COUNT, "one row per route");

#define CALL(name, success, failed, commits)                                             \
  {                                                                                      \
    name, success, failed, true, commits                                                 \
  }
#define LOOK(name, success, failed)                                                      \
  {                                                                                      \
    name, success, failed, false, false                                                  \
  }

static const wefti_route_fact facts[WEFTI_ROUTE_COUNT] = {
  [WEFTI_ROUTE_INIT] = CALL("init_weight_transfer_engine",
                            "{\"message\":\"Weight transfer initialized\"}", NULL, false),
  [WEFTI_ROUTE_SHUTDOWN] =
      CALL("shutdown_weight_transfer_engine",
           "{\"message\":\"Weight transfer shut down\"}", NULL, false),
  [WEFTI_ROUTE_START] =
      CALL("start_weight_update", "{\"message\":\"Weight update started\"}", NULL, false),
  [WEFTI_ROUTE_START_DRAFT] =
      CALL("start_draft_weight_update", "{\"message\":\"Draft weight update started\"}",
           NULL, false),
  [WEFTI_ROUTE_UPDATE] =
      CALL("update_weights", "{\"message\":\"Weights updated\"}", NULL, false),
  [WEFTI_ROUTE_FINISH] = CALL("finish_weight_update",
                              "{\"message\":\"Weight update finished\"}", NULL, true),
  [WEFTI_ROUTE_LABEL] = CALL("update_weight_version", NULL, NULL, true),
  [WEFTI_ROUTE_PAUSE] =
      CALL("pause", "{\"status\":\"paused\"}", "Failed to pause generation", false),
  [WEFTI_ROUTE_RESUME] =
      CALL("resume", "{\"status\":\"resumed\"}", "Failed to resume generation", false),
  [WEFTI_ROUTE_CHECKER] = CALL("weight_checker", NULL, NULL, false),
  [WEFTI_ROUTE_RESET_PREFIX] =
      CALL("reset_prefix_cache", "{\"success\":true}", NULL, false),
  [WEFTI_ROUTE_RESET_MM] = CALL("reset_mm_cache", "", NULL, false),
  [WEFTI_ROUTE_RESET_ENCODER] = CALL("reset_encoder_cache", "", NULL, false),
  [WEFTI_ROUTE_ABORT] =
      CALL("abort_weight_update", "{\"message\":\"Weight update aborted\"}", NULL, false),
  [WEFTI_ROUTE_ABORT_REQUESTS] =
      CALL("abort_requests", "{\"status\":\"aborted\",\"aborted\":0}", NULL, false),
  [WEFTI_ROUTE_RESOLVE] = CALL("resolve_weight_update",
                               "{\"message\":\"Weight update resolved\"}", NULL, true),
  [WEFTI_ROUTE_INFO] = LOOK("weight_info", NULL, NULL),
  [WEFTI_ROUTE_IS_PAUSED] = LOOK("is_paused", NULL, "Failed to fetch pause status"),
  [WEFTI_ROUTE_WORLD_SIZE] = LOOK("get_world_size", NULL, NULL),
  [WEFTI_ROUTE_STATUS] = LOOK("weight_status", NULL, NULL),
  [WEFTI_ROUTE_WEIGHTS] = LOOK("weights", NULL, NULL),
  [WEFTI_ROUTE_VERSIONS] = LOOK("weight_versions", NULL, NULL),
  [WEFTI_ROUTE_EVENTS] = LOOK("weight_events", NULL, NULL),
  [WEFTI_ROUTE_HEALTH] = LOOK("health", "", NULL),
  [WEFTI_ROUTE_READY] = LOOK("ready", "{\"ready\":true}", NULL),
  [WEFTI_ROUTE_VERSION] = LOOK("version", NULL, NULL),
  [WEFTI_ROUTE_METRICS] = LOOK("metrics", NULL, NULL),
};

const weft_http_route *wefti_acceptor_routes(size_t *count)
{
  *count = sizeof routes / sizeof routes[0];
  return routes;
}

const wefti_route_fact *wefti_route_fact_of(uint32_t route)
{
  return route < WEFTI_ROUTE_COUNT ? &facts[route] : NULL;
}

bool wefti_route_reads_body(uint32_t route)
{
  for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
    if ((uint32_t)routes[i].id == route) {
      return (routes[i].flags & WEFT_HTTP_BODY) != 0;
    }
  }
  return false;
}
