// A stranger's C++ program: labels in an engine of this process, commits by callback.
#include <weft/json.h>
#include <weft/weft.h>

#include <atomic>
#include <cstdio>
#include <string>

int main()
{
  std::atomic<int> commits{ 0 };
  weft_engine_opts opts = {};
  opts.size = sizeof opts;
  opts.workers = WEFT_WORKERS_THREADS;
  opts.arg = &commits;
  opts.on_commit = [](void *arg, const weft_commit *commit) {
    if (std::string(commit->kind) == "label") {
      ++*static_cast<std::atomic<int> *>(arg);
    }
  };
  weft_engine *engine = nullptr;
  weft_why why = {};
  if (weft_engine_create(&opts, &engine, &why) != WEFT_OK ||
      weft_engine_wait_ready(engine, 20000, &why) != WEFT_OK) {
    std::fprintf(stderr, "%s\n", why.text);
    return 1;
  }
  char version[WEFT_VERSION_MAX + 1] = "";
  bool ok = true;
  for (const char *v : { "one", "two" }) {
    ok = ok && weft_engine_set_version(engine, v, 0, &why) == WEFT_OK;
  }
  ok = ok && weft_engine_get_version(engine, version, sizeof version, &why) == WEFT_OK;
  weft_engine_destroy(engine); // every callback has been made then
  std::printf("version %s after %d labels\n", version, commits.load());
  if (!ok || std::string(version) != "two" || commits != 2) {
    std::fprintf(stderr, "%s\n", why.text);
    return 1;
  }
  return 0;
}
