/* NVML as far as it is asked, answering from the file that $FAKE_NVML names.

   init 18                         what nvmlInit returns (0 if it is not said)
   driver 550.54.15                cuda 12040
   hang nvmlDeviceGetCount_v2      this call never returns
   held PATH                       a file that is there while the driver is open
   gpu 0 uuid GPU-…                gpu 0 name …           gpu 0 bus 00000000:18:00.0
   gpu 0 memory TOTAL RESERVED FREE                        absent: Not Supported
   gpu 0 lost 15                   every call about it returns this
   gpu 0 mig 1                     gpu 0 slice K UUID INSTANCE TOTAL FREE NAME
   gpu 0 link K UP BUS KIND        topology 0 1 50
   gpu 0 WORD NUMBER [NUMBER]      anything else that is a number

   A struct's layout is that of the public header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7 };
#define LINES 2048
#define SLICE 100

static char lines[LINES][256];
static int count;

static void load(void) {
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  count = 0;
  while (file && count < LINES && fgets(lines[count], sizeof lines[0], file)) {
    lines[count][strcspn(lines[count], "\n")] = 0;
    count++;
  }
  if (file) fclose(file);
}

static const char *find(const char *key) {
  size_t length = strlen(key);
  for (int at = 0; at < count; at++)
    if (!strncmp(lines[at], key, length) && lines[at][length] == ' ')
      return lines[at] + length + 1;
  return NULL;
}

static void pass(const char *call) {
  char key[128];
  snprintf(key, sizeof key, "hang %s", call);
  for (int at = 0; at < count; at++)
    while (!strcmp(lines[at], key)) pause();
}

/* A handle is 1 + the card's number, and SLICE times 1 + the slice's. */
static int card(void *handle) { return (int)((long)handle % SLICE) - 1; }
static int slice(void *handle) { return (int)((long)handle / SLICE) - 1; }

static const char *of(void *handle, const char *word) {
  char key[128];
  snprintf(key, sizeof key, "gpu %d %s", card(handle), word);
  return find(key);
}

static const char *of_slice(void *handle) {
  char word[32];
  snprintf(word, sizeof word, "slice %d", slice(handle));
  return of(handle, word);
}

static int lost(void *handle) {
  const char *said = of(handle, "lost");
  return said ? atoi(said) : OK;
}

#define ASK(call, word)                                   \
  pass(call);                                             \
  if (lost(handle)) return lost(handle);                  \
  if (slice(handle) >= 0) return NOT_SUPPORTED;           \
  const char *said = of(handle, word);                    \
  if (!said) return NOT_SUPPORTED

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  load();
  pass("nvmlInitWithFlags");
  if (find("init") && atoi(find("init"))) return atoi(find("init"));
  if (find("held")) fclose(fopen(find("held"), "w"));
  return OK;
}
int nvmlShutdown(void) {
  if (find("held")) unlink(find("held"));
  return OK;
}
const char *nvmlErrorString(int code) {
  switch (code) {
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  snprintf(out, size, "%s", find("driver") ? find("driver") : "");
  return OK;
}
int nvmlSystemGetCudaDriverVersion(int *out) {
  if (!find("cuda")) return NOT_SUPPORTED;
  *out = atoi(find("cuda"));
  return OK;
}
int nvmlDeviceGetCount_v2(unsigned *out) {
  pass("nvmlDeviceGetCount_v2");
  char key[32];
  for (*out = 0;; ++*out) {
    snprintf(key, sizeof key, "gpu %u name", *out);
    if (!find(key)) return OK;
  }
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  *out = (void *)(long)(index + 1);
  return OK;
}
int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
  if (lost(handle)) return lost(handle);
  if (slice(handle) >= 0) {
    snprintf(out, size, "%.*s", (int)strcspn(of_slice(handle), " "), of_slice(handle));
    return OK;
  }
  snprintf(out, size, "%s", of(handle, "uuid"));
  return OK;
}
int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
  const char *said = of(handle, "name");
  if (slice(handle) >= 0) {
    said = of_slice(handle);
    for (int words = 0; words < 4; words++) said = strchr(said, ' ') + 1;
  }
  snprintf(out, size, "%s", said);
  return OK;
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
} Pci;
static void place(Pci *out, const char *bus) {
  memset(out, 0, sizeof *out);
  snprintf(out->text, sizeof out->text, "%.*s", (int)strcspn(bus, " "), bus);
  sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
}
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *out) {
  if (!of(handle, "bus")) return NOT_SUPPORTED;
  place(out, of(handle, "bus"));
  return OK;
}
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *out) {
  pass("nvmlDeviceGetMemoryInfo_v2");
  if (lost(handle)) return lost(handle);
  if (slice(handle) >= 0) {
    const char *said = of_slice(handle);
    out->reserved = 0;
    return sscanf(said, "%*s %*s %llu %llu", &out->total, &out->free) == 2 ? OK : INVALID;
  }
  const char *said = of(handle, "memory");
  if (!said) return NOT_SUPPORTED;
  sscanf(said, "%llu %llu %llu", &out->total, &out->reserved, &out->free);
  out->used = out->total - out->reserved - out->free;
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *out) {
  Memory2 new = {0};
  int code = nvmlDeviceGetMemoryInfo_v2(handle, &new);
  *out = (Memory){new.total, new.free, new.used};
  return code;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) {
  ASK("nvmlDeviceGetMigMode", "mig");
  *now = *later = atoi(said);
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *out) {
  ASK("nvmlDeviceGetMaxMigDeviceCount", "mig");
  *out = 7;
  return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
  *out = (void *)((long)handle + SLICE * (long)(index + 1));
  return of_slice(*out) ? OK : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *out) {
  if (slice(handle) < 0) return NOT_SUPPORTED;
  return sscanf(of_slice(handle), "%*s %u", out) == 1 ? OK : INVALID;
}
static const char *link_of(void *handle, unsigned number) {
  char word[32];
  snprintf(word, sizeof word, "link %u", number);
  return of(handle, word);
}
int nvmlDeviceGetNvLinkState(void *handle, unsigned number, unsigned *out) {
  const char *said = link_of(handle, number);
  if (!said) return number ? INVALID : NOT_SUPPORTED;
  *out = atoi(said);
  return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned number, Pci *out) {
  const char *said = link_of(handle, number);
  if (!said) return INVALID;
  place(out, strchr(said, ' ') + 1);
  return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned number, unsigned *out) {
  const char *said = link_of(handle, number);
  return said && sscanf(said, "%*s %*s %u", out) == 1 ? OK : INVALID;
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *out) {
  char key[64];
  snprintf(key, sizeof key, "topology %d %d", card(one), card(other));
  if (!find(key)) return NOT_SUPPORTED;
  *out = atoi(find(key));
  return OK;
}
#define NUMBER(call, word)                    \
  int call(void *handle, unsigned *out) {     \
    ASK(#call, word);                         \
    *out = (unsigned)strtoul(said, NULL, 0);  \
    return OK;                                \
  }
#define PAIR(call, word)                                         \
  int call(void *handle, unsigned *one, unsigned *other) {       \
    ASK(#call, word);                                            \
    return sscanf(said, "%u %u", one, other) == 2 ? OK : INVALID; \
  }
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerUsage, "power")
PAIR(nvmlDeviceGetCudaComputeCapability, "compute")
PAIR(nvmlDeviceGetEccMode, "ecc")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_range")
PAIR(nvmlDeviceGetUtilizationRates_, "utilization")
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *out) {
  return nvmlDeviceGetUtilizationRates_(handle, out, out + 1);
}
#define LONG(call, word)                                \
  int call(void *handle, unsigned long long *out) {     \
    ASK(#call, word);                                   \
    *out = strtoull(said, NULL, 0);                     \
    return OK;                                          \
  }
LONG(nvmlDeviceGetVirtualizationMode, "virtual")
LONG(nvmlDeviceGetCurrentClocksEventReasons, "events")
LONG(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")
/* Cause 0: many single bits, 1: a double one. Asked without a place it says how many. */
int nvmlDeviceGetRetiredPages(void *handle, int cause, unsigned *count,
                              unsigned long long *pages) {
  ASK("nvmlDeviceGetRetiredPages", "retired");
  unsigned of_cause[2], room = *count;
  if (sscanf(said, "%u %u", of_cause, of_cause + 1) != 2) return INVALID;
  *count = of_cause[cause];
  if (!pages || room < *count) return *count ? INSUFFICIENT : OK;
  for (unsigned at = 0; at < *count; at++) pages[at] = 4096ull * at;
  return OK;
}
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *out) {
  (void)counter;
  ASK("nvmlDeviceGetTotalEccErrors", type ? "ecc_uncorrected" : "ecc_corrected");
  *out = strtoull(said, NULL, 0);
  return OK;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) {
  (void)sensor;
  ASK("nvmlDeviceGetTemperature", "temperature");
  *out = atoi(said);
  return OK;
}
int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *out) {
  ASK("nvmlDeviceGetMaxClockInfo", type == 1 ? "sm_clock" : "memory_clock");
  *out = atoi(said);
  return OK;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
  ASK("nvmlDeviceGetRemappedRows", "remapped");
  return sscanf(said, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4
             ? OK : INVALID;
}
