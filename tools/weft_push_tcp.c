#include "push.h"

int push_update_tcp(push *p, const char *path)
{
  (void)p;
  cli_warn("%s: --source tcp is not built in yet", path);
  return CLI_USAGE;
}
