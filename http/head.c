#include "conn.h"

#include <llhttp.h>
#include <string.h>
#include <strings.h>

static int on_url(llhttp_t *p, const char *at, size_t len)
{
  wefti_head *h = p->data;
  if (h->path_len == 0) {
    h->path = (size_t)(at - h->data);
  }
  h->path_len += len; /* the whole target until split_target() */
  return 0;
}

/* llhttp may hand out one span in several calls. */
static int on_field(llhttp_t *p, const char *at, size_t len)
{
  wefti_head *h = p->data;
  if (h->field_count == 0 || h->value_done) {
    if (h->field_count == WEFTI_HEADERS_MAX) {
      h->bad = "Too many header fields";
      return -1;
    }
    h->value_done = false;
    const uint32_t start = (uint32_t)(at - h->data);
    h->fields[h->field_count++] = (wefti_field){ .name = start };
  }
  h->fields[h->field_count - 1].name_len += (uint32_t)len;
  return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len)
{
  wefti_head *h = p->data;
  wefti_field *f = &h->fields[h->field_count - 1];
  if (f->value_len == 0) {
    f->value = (uint32_t)(at - h->data);
  }
  f->value_len += (uint32_t)len;
  return 0;
}

static int on_value_complete(llhttp_t *p)
{
  wefti_head *h = p->data;
  h->value_done = true;
  return 0;
}

static int on_headers_complete(llhttp_t *p)
{
  (void)p;
  return HPE_PAUSED; /* bodies are ours (chunk.c) */
}

static bool is_blank(char ch)
{
  return ch == ' ' || ch == '\t';
}

static void trim(const wefti_head *h, wefti_field *f)
{
  while (f->value_len > 0 && is_blank(h->data[f->value])) {
    f->value++;
    f->value_len--;
  }
  while (f->value_len > 0 && is_blank(h->data[f->value + f->value_len - 1])) {
    f->value_len--;
  }
}

static bool equals(const char *text, size_t len, const char *want)
{
  return len == strlen(want) && strncasecmp(text, want, len) == 0;
}

static bool is_authority(const char *text, size_t len)
{
  for (size_t i = 0; i < len; i++) {
    const char ch = text[i];
    const char low = (char)(ch | 0x20);
    if (!((low >= 'a' && low <= 'z') || (ch >= '0' && ch <= '9') ||
          (ch != '\0' && strchr("-._~%!$&'()*+,;=:[]", ch) != NULL))) {
      return false;
    }
  }
  return len > 0;
}

static int refuse(wefti_head *h, int status, const char *why)
{
  h->bad = why;
  return status;
}

static int take_length(wefti_head *h, const char *v, size_t len)
{
  if (h->body == WEFTI_LENGTH) {
    return refuse(h, 400, "More than one Content-Length");
  }
  uint64_t n = 0;
  for (size_t i = 0; i < len; i++) {
    if (v[i] < '0' || v[i] > '9' || __builtin_mul_overflow(n, 10U, &n) ||
        __builtin_add_overflow(n, (uint64_t)(v[i] - '0'), &n)) {
      return refuse(h, 400, "Content-Length is not a number");
    }
  }
  if (len == 0) {
    return refuse(h, 400, "Content-Length is empty");
  }
  if (h->body == WEFTI_CHUNKED) {
    return refuse(h, 400, "Content-Length together with Transfer-Encoding");
  }
  h->body = WEFTI_LENGTH;
  h->content_length = n;
  return 0;
}

static int take_encoding(wefti_head *h, const char *v, size_t len)
{
  if (h->http10) {
    return refuse(h, 400, "Transfer-Encoding in HTTP/1.0");
  }
  if (h->body != WEFTI_NO_BODY) {
    return refuse(h, 400, "Transfer-Encoding together with another framing of the body");
  }
  if (!equals(v, len, "chunked")) {
    return refuse(h, 400, "Transfer-Encoding is not chunked");
  }
  h->body = WEFTI_CHUNKED;
  return 0;
}

static int take_host(wefti_head *h, const char *v, size_t len, unsigned *hosts)
{
  if (++*hosts > 1) {
    return refuse(h, 400, "More than one Host");
  }
  return is_authority(v, len) ? 0 : refuse(h, 400, "Host is not valid");
}

static int take_expect(wefti_head *h, const char *v, size_t len)
{
  if (!equals(v, len, "100-continue")) {
    return refuse(h, 417, "Expect is not 100-continue");
  }
  h->expect_continue = !h->http10;
  return 0;
}

static int check_fields(wefti_head *h)
{
  unsigned hosts = 0;
  int status = 0;
  for (size_t i = 0; i < h->field_count && status == 0; i++) {
    wefti_field *f = &h->fields[i];
    trim(h, f);
    const char *name = h->data + f->name;
    const char *v = h->data + f->value;
    if (equals(name, f->name_len, "host")) {
      status = take_host(h, v, f->value_len, &hosts);
    } else if (equals(name, f->name_len, "content-length")) {
      status = take_length(h, v, f->value_len);
    } else if (equals(name, f->name_len, "transfer-encoding")) {
      status = take_encoding(h, v, f->value_len);
    } else if (equals(name, f->name_len, "expect")) {
      status = take_expect(h, v, f->value_len);
    }
  }
  if (status == 0 && hosts == 0 && !h->http10) {
    return refuse(h, 400, "Host is missing");
  }
  return status;
}

/* Skips "http://authority" of an absolute target. */
static int skip_origin(wefti_head *h)
{
  const char *t = h->data + h->path;
  const size_t scheme = sizeof "http://" - 1;
  if (h->path_len < scheme || strncasecmp(t, "http://", scheme) != 0) {
    return refuse(h, 400, "Request target is neither a path nor an http URL");
  }
  size_t end = scheme;
  while (end < h->path_len && t[end] != '/' && t[end] != '?') {
    end++;
  }
  if (!is_authority(t + scheme, end - scheme)) {
    return refuse(h, 400, "Authority of the request target is not valid");
  }
  h->path += end;
  h->path_len -= end;
  return 0;
}

static int split_target(wefti_head *h)
{
  if (h->path_len == 0 || memchr(h->data + h->path, '#', h->path_len) != NULL) {
    return refuse(h, 400, "Request target is not valid");
  }
  const int status = h->data[h->path] == '/' ? 0 : skip_origin(h);
  if (status != 0) {
    return status;
  }
  const size_t end = h->path + h->path_len;
  const char *mark = memchr(h->data + h->path, '?', h->path_len);
  h->query = end;
  if (mark != NULL) {
    h->path_len = (size_t)(mark - h->data) - h->path;
    h->query = h->path + h->path_len + 1;
  }
  h->query_len = end - h->query;
  return 0;
}

int wefti_head_parse(wefti_head *head, char *data, size_t len)
{
  static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
  };
  head->data = data;
  head->len = len;
  head->bad = NULL;
  head->path = head->path_len = head->query = head->query_len = 0;
  head->content_length = 0;
  head->body = WEFTI_NO_BODY;
  head->expect_continue = false;
  head->value_done = true;
  head->field_count = 0;
  llhttp_t p;
  llhttp_init(&p, HTTP_REQUEST, &settings);
  p.data = head;
  const llhttp_errno_t err = llhttp_execute(&p, data, len);
  if (err != HPE_PAUSED) {
    return head->bad != NULL ? 431 : refuse(head, 400, "Invalid HTTP request received.");
  }
  if (p.method == HTTP_CONNECT) {
    return refuse(head, 400, "CONNECT is not served");
  }
  head->method = llhttp_method_name((llhttp_method_t)p.method);
  head->http10 = p.http_minor == 0;
  head->keep_alive = llhttp_should_keep_alive(&p) != 0;
  const int status = split_target(head);
  return status != 0 ? status : check_fields(head);
}

void wefti_head_terminate(wefti_head *head)
{
  head->data[head->query + head->query_len] = '\0'; /* was the blank before HTTP/1.x */
  for (size_t i = 0; i < head->field_count; i++) {
    const wefti_field *f = &head->fields[i];
    if (f->value_len > 0) { /* else value may point nowhere */
      head->data[f->value + f->value_len] = '\0';
    }
  }
}

int wefti_head_find(const wefti_head *head, const char *name)
{
  for (size_t i = 0; i < head->field_count; i++) {
    const wefti_field *f = &head->fields[i];
    if (equals(head->data + f->name, f->name_len, name)) {
      return (int)i;
    }
  }
  return -1;
}

const char *weft_http_request_header(const weft_http_request *req, const char *name)
{
  const wefti_request *full = (const wefti_request *)(const void *)req; /* pub is first */
  const int at = full->head == NULL ? -1 : wefti_head_find(full->head, name);
  if (at < 0) {
    return NULL;
  }
  const wefti_field *f = &full->head->fields[at];
  return f->value_len == 0 ? "" : full->head->data + f->value;
}
