/* A strict scanner for runs of Kineto events: JSON bytes in, columns out.

   It takes what the typed decoder of events.py takes, with the same values, or refuses the whole run: then the decoder reads it.
   So it may be stricter than the decoder, never laxer. Refused are, beside what is no JSON: keys with escapes, surrogates, numbers
   of unusual length, deep nesting, and values of a type that the field does not have.

   Safety: input is a bytes object, which ends in a NUL that is no part of it. No rule accepts a NUL, so a loop that reads byte by
   byte stops there at the latest; only the 16-byte loop of text_end compares with the end. Nesting costs a bit, no stack.

   Memory: rows of the present run, which are handed over at its end, and a cache from a text as written to its number, bounded in
   entries, bytes and probes; what does not fit is asked again each time. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define MAX_DEPTH 60
#define MAX_DIGITS 18      /* of an integer: it fits 64 bits */
#define MAX_NUMBER 60      /* characters of a number that needs the slow way */
#define MAX_CACHED_TEXT 1024
#define MAX_CACHE_BYTES (64u << 20)
#define MAX_CACHE_ENTRIES (1u << 20)
#define MAX_PROBES 32

/* ---- texts and numbers ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *at;
    Py_ssize_t size;
    int escaped;
} Text;

static inline const char *skip_space(const char *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    return p;
}

static inline int is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* After a backslash; NULL for no escape, or one of a surrogate. */
static const char *escape_end(const char *p) {
    static const char simple[] = "\"\\/bfnrt";
    if (*p != 'u') return *p && strchr(simple, *p) ? p + 1 : NULL;
    int code = 0;
    for (int i = 1; i <= 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return NULL;
        code = code << 4 | digit;
    }
    return code >= 0xD800 && code <= 0xDFFF ? NULL : p + 5;
}

/* One character beyond ASCII as RFC 3629 allows it. */
static const char *utf8_end(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    unsigned low = 0x80, high = 0xBF;
    int more;
    if (*p >= 0xC2 && *p <= 0xDF) more = 1;
    else if ((*p & 0xF0) == 0xE0) {
        more = 2;
        if (*p == 0xE0) low = 0xA0;
        if (*p == 0xED) high = 0x9F;
    } else if (*p >= 0xF0 && *p <= 0xF4) {
        more = 3;
        if (*p == 0xF0) low = 0x90;
        if (*p == 0xF4) high = 0x8F;
    } else return NULL;
    for (p++; more--; p++, low = 0x80, high = 0xBF)
        if (*p < low || *p > high) return NULL;
    return (const char *)p;
}

/* From behind the opening quote to the closing one. */
static const char *text_end(const char *p, const char *end, int *escaped) {
    for (;;) {
#ifdef __SSE2__
        while (end - p >= 16) {
            __m128i some = _mm_loadu_si128((const __m128i *)p);
            /* Below a blank, as signed bytes: control characters and what lies beyond ASCII. */
            __m128i odd = _mm_or_si128(
                _mm_cmplt_epi8(some, _mm_set1_epi8(0x20)),
                _mm_or_si128(_mm_cmpeq_epi8(some, _mm_set1_epi8('"')), _mm_cmpeq_epi8(some, _mm_set1_epi8('\\'))));
            int mask = _mm_movemask_epi8(odd);
            if (mask) {
                p += __builtin_ctz((unsigned)mask);
                break;
            }
            p += 16;
        }
#else
        (void)end;
#endif
        while ((signed char)*p >= 0x20 && *p != '"' && *p != '\\') p++;
        if (*p == '"') return p;
        if (*p == '\\') {
            *escaped = 1;
            p = escape_end(p + 1);
        } else if ((signed char)*p < 0) p = utf8_end(p);
        else return NULL;
        if (!p) return NULL;
    }
}

static const char *number_end(const char *p) {
    if (*p == '-') p++;
    if (*p == '0') p++;
    else if (is_digit(*p)) while (is_digit(*p)) p++;
    else return NULL;
    if (*p == '.') {
        if (!is_digit(*++p)) return NULL;
        while (is_digit(*p)) p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (!is_digit(*p)) return NULL;
        while (is_digit(*p)) p++;
    }
    return p;
}

static const char *skip_value(const char *p, const char *end) {
    uint64_t objects = 0; /* a bit a level: 1 in an object, 0 in a list */
    int depth = 0, escaped;
value:
    p = skip_space(p);
    switch (*p) {
    case '"':
        if (!(p = text_end(p + 1, end, &escaped))) return NULL;
        p++;
        break;
    case '{':
        if (depth++ == MAX_DEPTH) return NULL;
        objects = objects << 1 | 1;
        p = skip_space(p + 1);
        if (*p != '}') goto key;
        break;
    case '[':
        if (depth++ == MAX_DEPTH) return NULL;
        objects <<= 1;
        p = skip_space(p + 1);
        if (*p != ']') goto value;
        break;
    case 't':
        if (p[1] != 'r' || p[2] != 'u' || p[3] != 'e') return NULL;
        p += 4;
        break;
    case 'f':
        if (p[1] != 'a' || p[2] != 'l' || p[3] != 's' || p[4] != 'e') return NULL;
        p += 5;
        break;
    case 'n':
        if (p[1] != 'u' || p[2] != 'l' || p[3] != 'l') return NULL;
        p += 4;
        break;
    default:
        if (!(p = number_end(p))) return NULL;
    }
    while (depth) {
        p = skip_space(p);
        if (*p == ',') {
            p++;
            if (objects & 1) {
                p = skip_space(p);
                goto key;
            }
            goto value;
        }
        if (*p != (objects & 1 ? '}' : ']')) return NULL;
        p++;
        objects >>= 1;
        depth--;
    }
    return p;
key:
    if (*p != '"' || !(p = text_end(p + 1, end, &escaped))) return NULL;
    p = skip_space(p + 1);
    if (*p != ':') return NULL;
    p++;
    goto value;
}

static const char *read_text(const char *p, const char *end, Text *text) {
    if (*p != '"') return NULL;
    text->at = p + 1;
    text->escaped = 0;
    if (!(p = text_end(p + 1, end, &text->escaped))) return NULL;
    text->size = p - text->at;
    return p + 1;
}

static const char *read_null(const char *p) { return p[1] == 'u' && p[2] == 'l' && p[3] == 'l' ? p + 4 : NULL; }

static const char *read_integer(const char *p, int64_t *value) {
    int negative = *p == '-', digits = 0;
    int64_t sum = 0;
    p += negative;
    if (*p == '0' && is_digit(p[1])) return NULL;
    for (; is_digit(*p); p++) {
        if (++digits > MAX_DIGITS) return NULL;
        sum = sum * 10 + (*p - '0');
    }
    if (!digits || *p == '.' || *p == 'e' || *p == 'E') return NULL;
    *value = negative ? -sum : sum;
    return p;
}

static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
#define MAX_SCALE 15

/* mantissa / 10^scale, rounded once: exact operands divide to the nearest double; larger ones are divided as integers. */
static int quotient(uint64_t mantissa, int scale, double *value) {
    if (!scale) {
        *value = (double)mantissa;
        return 1;
    }
#if FLT_EVAL_METHOD == 0
    if (mantissa <= (uint64_t)1 << 53) {
        *value = (double)mantissa / POWERS[scale];
        return 1;
    }
#endif
#ifdef __SIZEOF_INT128__
    /* Here mantissa > 2^53 and 10^scale < 2^50, so that the quotient has more than 64 bits. */
    if (mantissa > (uint64_t)1 << 53) {
        unsigned __int128 over = (unsigned __int128)mantissa << 64, under = (uint64_t)POWERS[scale], whole = over / under;
        int inexact = over != whole * under;
        int bits = 128 - __builtin_clzll((uint64_t)(whole >> 64));
        int drop = bits - 53;
        unsigned __int128 rest = whole & (((unsigned __int128)1 << drop) - 1), half = (unsigned __int128)1 << (drop - 1);
        uint64_t top = (uint64_t)(whole >> drop);
        if (rest > half || (rest == half && (inexact || (top & 1)))) top++;
        *value = ldexp((double)top, drop - 64);
        return 1;
    }
#endif
    return 0;
}

static const char *read_number(const char *p, double *value) {
    const char *from = p;
    int negative = *p == '-', digits = 0, scale = 0;
    uint64_t mantissa = 0;
    p += negative;
    if (*p == '0' && is_digit(p[1])) return NULL;
    if (!is_digit(*p)) return NULL;
    for (; is_digit(*p); p++) {
        mantissa = mantissa * 10 + (uint64_t)(*p - '0');
        digits += digits || *p != '0';
    }
    if (*p == '.') {
        if (!is_digit(*++p)) return NULL;
        for (; is_digit(*p); p++, scale++) {
            mantissa = mantissa * 10 + (uint64_t)(*p - '0');
            digits += digits || *p != '0';
        }
    }
    if (*p != 'e' && *p != 'E' && digits <= 19 && scale <= MAX_SCALE && quotient(mantissa, scale, value)) {
        if (negative) *value = -*value;
        return p;
    }
    char copy[MAX_NUMBER + 1], *stop;
    p = number_end(from);
    if (!p || p - from > MAX_NUMBER) return NULL;
    memcpy(copy, from, (size_t)(p - from));
    copy[p - from] = 0;
    *value = PyOS_string_to_double(copy, &stop, NULL);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    return *stop || !isfinite(*value) ? NULL : p;
}

/* ---- one event ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    Text phase, category, name, pid, tid, stream;
    double start, duration, bytes;
    int64_t correlation;
    int collective, shapes; /* whether the arguments name one, or hold the shapes of inputs */
    const char *args, *args_end;
} Event;

#define KEY_IS(text, word) ((text).size == sizeof(word) - 1 && !memcmp((text).at, word, sizeof(word) - 1))

/* An integer or a text, as written. */
static const char *read_id(const char *p, const char *end, Text *id) {
    Text inner;
    int64_t number;
    id->at = p;
    id->escaped = 0;
    p = *p == '"' ? read_text(p, end, &inner) : read_integer(p, &number);
    if (p) id->size = p - id->at;
    return p;
}

static void no_args(Event *event) {
    event->correlation = -1;
    event->bytes = 0;
    event->collective = event->shapes = 0;
    event->stream = (Text){"null", 4, 0};
    event->args = event->args_end = NULL;
}

static const char *read_args(const char *p, const char *end, Event *event) {
    no_args(event);
    if (*p == 'n') return read_null(p);
    if (*p != '{') return NULL;
    event->args = p;
    p = skip_space(p + 1);
    if (*p == '}') return event->args_end = p + 1;
    for (;;) {
        Text key, text;
        int64_t number;
        if (!(p = read_text(p, end, &key)) || key.escaped) return NULL;
        p = skip_space(p);
        if (*p != ':') return NULL;
        p = skip_space(p + 1);
        if (KEY_IS(key, "correlation")) p = read_integer(p, &event->correlation);
        else if (KEY_IS(key, "stream")) {
            if (*p == 'n') {
                event->stream = (Text){"null", 4, 0};
                p = read_null(p);
            } else p = read_id(p, end, &event->stream);
        } else if (KEY_IS(key, "bytes")) p = read_number(p, &event->bytes);
        else if (KEY_IS(key, "Collective name")) {
            event->collective = *p == '"';
            p = *p == 'n' ? read_null(p) : read_text(p, end, &text);
        } else if (KEY_IS(key, "In msg nelems") || KEY_IS(key, "Out msg nelems") || KEY_IS(key, "Group size") || KEY_IS(key, "Seq"))
            p = read_integer(p, &number);
        else if (KEY_IS(key, "dtype") || KEY_IS(key, "Process Group Name") || KEY_IS(key, "Process Group Description") ||
                 KEY_IS(key, "Process Group Ranks"))
            p = read_text(p, end, &text);
        else if (KEY_IS(key, "Src Rank") || KEY_IS(key, "Dst Rank")) {
            if (*p == 'n') p = read_null(p);
            else p = read_id(p, end, &text);
        } else {
            if (KEY_IS(key, "Input Dims")) event->shapes = 1;
            p = skip_value(p, end);
        }
        if (!p) return NULL;
        p = skip_space(p);
        if (*p == '}') return event->args_end = p + 1;
        if (*p != ',') return NULL;
        p = skip_space(p + 1);
    }
}

static const char *read_event(const char *p, const char *end, Event *event) {
    static const Text nothing = {"", 0, 0}, zero = {"0", 1, 0};
    event->phase = event->category = event->name = nothing;
    event->pid = event->tid = zero;
    event->start = event->duration = 0;
    no_args(event);
    if (*p != '{') return NULL;
    p = skip_space(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        Text key;
        if (!(p = read_text(p, end, &key)) || key.escaped) return NULL;
        p = skip_space(p);
        if (*p != ':') return NULL;
        p = skip_space(p + 1);
        if (KEY_IS(key, "ph")) p = read_text(p, end, &event->phase);
        else if (KEY_IS(key, "cat")) p = read_text(p, end, &event->category);
        else if (KEY_IS(key, "name")) p = read_text(p, end, &event->name);
        else if (KEY_IS(key, "pid")) p = read_id(p, end, &event->pid);
        else if (KEY_IS(key, "tid")) p = read_id(p, end, &event->tid);
        else if (KEY_IS(key, "ts")) p = read_number(p, &event->start);
        else if (KEY_IS(key, "dur")) p = read_number(p, &event->duration);
        else if (KEY_IS(key, "args")) p = read_args(p, end, event);
        else p = skip_value(p, end);
        if (!p) return NULL;
        p = skip_space(p);
        if (*p == '}') return event->phase.escaped ? NULL : p + 1;
        if (*p != ',') return NULL;
        p = skip_space(p + 1);
    }
}

/* ---- numbers for texts ---------------------------------------------------------------------------------------------------- */

typedef struct {
    char *text;
    uint32_t size, hash;
    int32_t number;
} Entry;

typedef struct {
    Entry *slots;
    size_t capacity, used, bytes;
} Cache;

static uint32_t hash_of(const char *text, Py_ssize_t size) {
    uint64_t hash = (uint64_t)size * 0x9E3779B97F4A7C15u;
    while (size >= 8) {
        uint64_t part;
        memcpy(&part, text, 8);
        hash = (hash ^ part) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
        text += 8;
        size -= 8;
    }
    uint64_t part = 0;
    memcpy(&part, text, (size_t)size);
    hash = (hash ^ part) * 0xC4CEB9FE1A85EC53u;
    return (uint32_t)(hash >> 32 ^ hash >> 13);
}

static void cache_clear(Cache *cache) {
    for (size_t i = 0; i < cache->capacity; i++) free(cache->slots[i].text);
    free(cache->slots);
    *cache = (Cache){NULL, 0, 0, 0};
}

static Entry *cache_find(Cache *cache, const char *text, Py_ssize_t size, uint32_t hash) {
    for (size_t i = 0; i < MAX_PROBES && i < cache->capacity; i++) {
        Entry *entry = &cache->slots[(hash + i) & (cache->capacity - 1)];
        if (!entry->text) return NULL;
        if (entry->hash == hash && entry->size == size && !memcmp(entry->text, text, (size_t)size)) return entry;
    }
    return NULL;
}

static Entry *cache_place(Cache *cache, uint32_t hash) {
    for (size_t i = 0; i < MAX_PROBES; i++) {
        Entry *entry = &cache->slots[(hash + i) & (cache->capacity - 1)];
        if (!entry->text) return entry;
    }
    return NULL;
}

static void cache_grow(Cache *cache) {
    Cache larger = {NULL, cache->capacity ? cache->capacity * 4 : 256, 0, cache->bytes};
    if (!(larger.slots = calloc(larger.capacity, sizeof(Entry)))) return;
    for (size_t i = 0; i < cache->capacity; i++) {
        Entry *old = &cache->slots[i], *place;
        if (!old->text) continue;
        if ((place = cache_place(&larger, old->hash))) {
            *place = *old;
            larger.used++;
        } else free(old->text);
    }
    free(cache->slots);
    *cache = larger;
}

/* Remembering is a convenience: without memory or room the text is asked again. */
static void cache_put(Cache *cache, const char *text, Py_ssize_t size, uint32_t hash, int32_t number) {
    if (cache->used * 2 >= cache->capacity && cache->used < MAX_CACHE_ENTRIES) cache_grow(cache);
    if (cache->used * 2 >= cache->capacity || cache->bytes + (size_t)size > MAX_CACHE_BYTES) return;
    Entry *entry = cache_place(cache, hash);
    if (!entry || !(entry->text = malloc((size_t)size + 1))) return;
    memcpy(entry->text, text, (size_t)size);
    entry->size = (uint32_t)size;
    entry->hash = hash;
    entry->number = number;
    cache->used++;
    cache->bytes += (size_t)size;
}

/* Number of a text as written; -1 with an exception if asking failed. */
static int32_t number_of(Cache *cache, const char *text, Py_ssize_t size, PyObject *ask) {
    uint32_t hash = hash_of(text, size);
    int small = size <= MAX_CACHED_TEXT;
    Entry *entry = small ? cache_find(cache, text, size, hash) : NULL;
    if (entry) return entry->number;
    PyObject *raw = PyBytes_FromStringAndSize(text, size);
    PyObject *given = raw ? PyObject_CallFunctionObjArgs(ask, raw, NULL) : NULL;
    Py_XDECREF(raw);
    if (!given) return -1;
    long number = PyLong_AsLong(given);
    Py_DECREF(given);
    if (PyErr_Occurred()) return -1;
    if (number < 0 || number > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "no number for a text");
        return -1;
    }
    if (small) cache_put(cache, text, size, hash, (int32_t)number);
    return (int32_t)number;
}

/* ---- a run of events ------------------------------------------------------------------------------------------------------ */

#define COLUMNS 8
enum { NAME, CATEGORY, START, DURATION, THREAD, STREAM, CORRELATION, BYTES };
static const size_t WIDTH[COLUMNS] = {4, 1, 8, 8, 4, 4, 8, 8};

typedef struct {
    PyObject_HEAD
    Cache names, categories, threads, streams;
    char *columns[COLUMNS];
    size_t capacity;
    char busy;
} Scanner;

typedef struct {
    PyObject *names, *categories, *threads, *streams;
} Asked;

static int make_room(Scanner *self, size_t rows) {
    if (rows < self->capacity) return 1;
    size_t larger = self->capacity ? self->capacity * 2 : 2048;
    for (int i = 0; i < COLUMNS; i++) {
        char *grown = realloc(self->columns[i], larger * WIDTH[i]);
        if (!grown) {
            PyErr_NoMemory();
            return 0;
        }
        self->columns[i] = grown;
    }
    self->capacity = larger;
    return 1;
}

static int32_t thread_of(Scanner *self, const Event *event, PyObject *ask) {
    char small[256], *key = small;
    size_t size = (size_t)(event->pid.size + event->tid.size) + 1;
    if (size > sizeof small && !(key = malloc(size))) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(key, event->pid.at, (size_t)event->pid.size);
    key[event->pid.size] = 0; /* no JSON holds one */
    memcpy(key + event->pid.size + 1, event->tid.at, (size_t)event->tid.size);
    int32_t number = number_of(&self->threads, key, (Py_ssize_t)size, ask);
    if (key != small) free(key);
    return number;
}

/* "gloo:all_reduce", but not "aten::add". */
static int of_a_library(const Text *name) {
    const char *colon = memchr(name->at, ':', name->size < 8 ? (size_t)name->size : 8);
    return name->escaped || (colon && colon[1] != ':');
}

/* Add a complete event; the categories from *first* to *last* have arguments that are used. 0 with an exception. */
static int add_event(Scanner *self, size_t row, const Event *event, const Asked *asked, long wordy, int *speaks) {
    int32_t name, category, thread, stream = -1;
    if (!make_room(self, row)) return 0;
    if ((name = number_of(&self->names, event->name.at, event->name.size, asked->names)) < 0) return 0;
    if ((category = number_of(&self->categories, event->category.at, event->category.size, asked->categories)) < 0) return 0;
    if ((thread = thread_of(self, event, asked->threads)) < 0) return 0;
    int uses = category < 31 && (wordy >> category & 1);
    if (uses && (stream = number_of(&self->streams, event->stream.at, event->stream.size, asked->streams)) < 0) return 0;
    ((int32_t *)self->columns[NAME])[row] = name;
    ((int8_t *)self->columns[CATEGORY])[row] = (int8_t)category;
    ((double *)self->columns[START])[row] = event->start;
    ((double *)self->columns[DURATION])[row] = event->duration;
    ((int32_t *)self->columns[THREAD])[row] = thread;
    ((int32_t *)self->columns[STREAM])[row] = stream;
    ((int64_t *)self->columns[CORRELATION])[row] = uses ? event->correlation : -1;
    ((double *)self->columns[BYTES])[row] = uses ? event->bytes : 0;
    *speaks = (event->collective && (uses || event->name.escaped || KEY_IS(event->name, "record_param_comms"))) ||
              (event->shapes && of_a_library(&event->name));
    return 1;
}

static PyObject *finished(Scanner *self, size_t rows, Py_ssize_t position, PyObject *speaking) {
    PyObject *columns = PyTuple_New(COLUMNS);
    for (int i = 0; columns && i < COLUMNS; i++) {
        PyObject *column = PyBytes_FromStringAndSize(rows ? self->columns[i] : "", (Py_ssize_t)(rows * WIDTH[i]));
        if (!column || PyTuple_SetItem(columns, i, column)) Py_CLEAR(columns);
    }
    PyObject *result = columns ? Py_BuildValue("nnOO", position, (Py_ssize_t)rows, columns, speaking) : NULL;
    Py_XDECREF(columns);
    return result;
}

/* To data + stop, where an event ends, or to the bracket that closes the list (stop < 0). */
static PyObject *scan_run(Scanner *self, const char *data, Py_ssize_t size, Py_ssize_t from, Py_ssize_t stop, const Asked *asked,
                          long wordy) {
    const char *end = data + size, *p = skip_space(data + from), *last = stop < 0 ? end : data + stop;
    size_t rows = 0;
    int closed = stop < 0, over = closed ? *p == ']' : p >= last;
    PyObject *speaking = PyList_New(0);
    if (!speaking) return NULL;
    if (!over) {
        for (;;) {
            Event event;
            int speaks = 0;
            if (!(p = read_event(p, end, &event)) || p > last) goto refused;
            if (KEY_IS(event.phase, "X")) {
                if (!add_event(self, rows, &event, asked, wordy, &speaks)) goto failed;
                if (speaks) {
                    PyObject *said = Py_BuildValue("nnnnn", (Py_ssize_t)rows, event.args - data, event.args_end - data,
                                                   event.name.size ? event.name.at - data : 0,
                                                   event.name.size ? event.name.at + event.name.size - data : 0);
                    int appended = said ? PyList_Append(speaking, said) : -1;
                    Py_XDECREF(said);
                    if (appended) goto failed;
                }
                rows++;
            } else if (KEY_IS(event.phase, "B") || KEY_IS(event.phase, "E")) {
                goto refused; /* halves of an event: the decoder's way joins them */
            }
            p = skip_space(p);
            if (p >= last || *p != ',') break;
            p = skip_space(p + 1);
        }
    }
    /* White space may lead beyond the end of the run; an event may not. */
    if (closed ? *p != ']' : p < last) goto refused;
    PyObject *result = finished(self, rows, p - data, speaking);
    Py_DECREF(speaking);
    return result;
refused:
    Py_DECREF(speaking);
    Py_RETURN_NONE;
failed:
    Py_DECREF(speaking);
    return NULL;
}

PyDoc_STRVAR(scan_doc,
"scan(data, start, stop, wordy, names, categories, threads, streams)\n--\n\n"
"Read the events of *data* from *start* on: to *stop*, or, if that is -1, to the bracket that closes their list.\n\n"
"*wordy* is a mask of the categories whose arguments are used. The last four are asked for the number of a text as written,\n"
"once for each; a thread is its pid and tid with a NUL between. Returns (position, rows, columns, speaking), or None if the run is\n"
"refused; columns are bytes in native order: name i4, category i1, start f8, duration f8, thread i4, stream i4, correlation i8,\n"
"bytes f8; speaking are (row, start and end of the arguments, start and end of the name) of events that may be about a collective.\n"
"After a refusal call forget().");

static PyObject *scanner_scan(PyObject *object, PyObject *args) {
    Scanner *self = (Scanner *)object;
    PyObject *data;
    Py_ssize_t start, stop, size;
    long wordy;
    char *text;
    Asked asked;
    if (!PyArg_ParseTuple(args, "SnnlOOOO:scan", &data, &start, &stop, &wordy, &asked.names, &asked.categories, &asked.threads,
                          &asked.streams) ||
        PyBytes_AsStringAndSize(data, &text, &size) < 0)
        return NULL;
    if (start < 0 || start > size || stop < -1 || stop > size) {
        PyErr_SetString(PyExc_ValueError, "start or stop lies outside of the data");
        return NULL;
    }
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the scanner is in use");
        return NULL;
    }
    self->busy = 1;
    PyObject *result = scan_run(self, text, size, start, stop, &asked, wordy);
    self->busy = 0;
    return result;
}

static void clear_caches(Scanner *self) {
    cache_clear(&self->names);
    cache_clear(&self->categories);
    cache_clear(&self->threads);
    cache_clear(&self->streams);
}

PyDoc_STRVAR(forget_doc, "forget()\n--\n\nForget the numbers that were asked for: they are taken back.");

static PyObject *scanner_forget(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    if (((Scanner *)object)->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the scanner is in use");
        return NULL;
    }
    clear_caches((Scanner *)object);
    Py_RETURN_NONE;
}

static void scanner_dealloc(PyObject *object) {
    Scanner *self = (Scanner *)object;
    PyTypeObject *type = Py_TYPE(object);
    clear_caches(self);
    for (int i = 0; i < COLUMNS; i++) free(self->columns[i]);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef scanner_methods[] = {
    {"scan", scanner_scan, METH_VARARGS, scan_doc},
    {"forget", scanner_forget, METH_NOARGS, forget_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, "Reads runs of events; remembers the numbers of texts between them."},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {"eroica.producers.trace._scan.Scanner", sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, scanner_slots};

static int scan_exec(PyObject *module) {
    PyObject *type = PyType_FromSpec(&scanner_spec);
    if (!type) return -1;
    if (PyModule_AddObject(module, "Scanner", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return PyModule_AddIntConstant(module, "REFUSES_HALVES", 1);
}

static PyModuleDef_Slot scan_slots[] = {{Py_mod_exec, scan_exec}, {0, NULL}};

static struct PyModuleDef scan_module = {
    PyModuleDef_HEAD_INIT, "_scan", "The compiled scanner of Kineto events.", 0, NULL, scan_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&scan_module); }
