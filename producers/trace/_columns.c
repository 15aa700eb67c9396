/* Computations on columns that numpy has only slow forms of, or at a price for each call: call trees, sets of intervals, a count of
   bytes. Each has a reference in Python (nesting.py, intervals.py, compiled.py), and gives the same.

   Columns come and go as bytes objects of float64 or int64 in native order; their sizes are checked, nothing else is trusted. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- call trees ----------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(nest_doc,
"nest(start, ends, deepest)\n--\n\n"
"What nesting.py computes of *start*, the events' starts ascending, and *ends*, their ends ascending, both float64 as bytes: how\n"
"many have ended when each begins, its depth, at most *deepest*, and its parent or -1; int64 as bytes.");

static PyObject *columns_nest(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *starts, *ends;
    char *start, *end;
    Py_ssize_t size, other, deepest;
    if (!PyArg_ParseTuple(args, "OOn:nest", &starts, &ends, &deepest) || PyBytes_AsStringAndSize(starts, &start, &size) < 0 ||
        PyBytes_AsStringAndSize(ends, &end, &other) < 0)
        return NULL;
    if (size != other || size % 8 || deepest < 0 || deepest > 1 << 20) {
        PyErr_SetString(PyExc_ValueError, "starts and ends must be as many, and the depth moderate");
        return NULL;
    }
    PyObject *columns[3] = {NULL, NULL, NULL}, *result = NULL;
    int64_t *out[3], *last = malloc((size_t)(deepest + 1) * 8);
    if (!last) return PyErr_NoMemory();
    for (int i = 0; i < 3; i++)
        if (!(columns[i] = PyBytes_FromStringAndSize(NULL, size))) goto done;
    for (int i = 0; i < 3; i++) out[i] = (int64_t *)PyBytes_AsString(columns[i]);
    for (Py_ssize_t d = 0; d <= deepest; d++) last[d] = -1;
    int64_t ended = 0, count = size / 8;
    for (int64_t i = 0; i < count; i++) {
        double begin, over;
        memcpy(&begin, start + 8 * i, 8);
        for (; ended < count; ended++) {
            memcpy(&over, end + 8 * ended, 8);
            if (!(over <= begin)) break;
        }
        int64_t depth = i > ended ? i - ended : 0;
        if (depth > deepest) depth = deepest;
        int64_t parent = depth ? last[depth - 1] : -1;
        memcpy(out[0] + i, &ended, 8);
        memcpy(out[1] + i, &depth, 8);
        memcpy(out[2] + i, &parent, 8);
        last[depth] = i;
    }
    result = Py_BuildValue("OOO", columns[0], columns[1], columns[2]);
done:
    for (int i = 0; i < 3; i++) Py_XDECREF(columns[i]);
    free(last);
    return result;
}

/* ---- intervals ------------------------------------------------------------------------------------------------------------ */

static inline double number_at(const char *column, Py_ssize_t i) {
    double value;
    memcpy(&value, column + 8 * i, 8);
    return value;
}

PyDoc_STRVAR(covered_doc,
"covered(start, end, before, t)\n--\n\n"
"What intervals.py computes of disjoint intervals, ascending, with the measure *before* each, and times *t* of any order, all float64\n"
"as bytes: the measure below each time; float64 as bytes.");

static PyObject *columns_covered(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given[4];
    char *column[4];
    Py_ssize_t size[4];
    if (!PyArg_ParseTuple(args, "OOOO:covered", &given[0], &given[1], &given[2], &given[3])) return NULL;
    for (int i = 0; i < 4; i++)
        if (PyBytes_AsStringAndSize(given[i], &column[i], &size[i]) < 0) return NULL;
    if (size[0] != size[1] || size[0] > size[2] || size[0] % 8 || size[3] % 8) {
        PyErr_SetString(PyExc_ValueError, "intervals must have as many starts, ends and measures");
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, size[3]);
    if (!result) return NULL;
    char *out = PyBytes_AsString(result);
    Py_ssize_t count = size[0] / 8, times = size[3] / 8, k = 0; /* k: how many begin at the time or before */
    double last = 0;
    for (Py_ssize_t i = 0; i < times; i++) {
        double t = number_at(column[3], i), value = 0;
        if (i && t >= last) {
            while (k < count && number_at(column[0], k) <= t) k++;
        } else {
            Py_ssize_t low = 0, high = count;
            while (low < high) {
                Py_ssize_t middle = low + (high - low) / 2;
                if (number_at(column[0], middle) <= t) low = middle + 1;
                else high = middle;
            }
            k = low;
        }
        last = t;
        if (k) {
            double until = number_at(column[1], k - 1);
            value = number_at(column[2], k - 1) + ((t < until ? t : until) - number_at(column[0], k - 1));
        }
        memcpy(out + 8 * i, &value, 8);
    }
    return result;
}

typedef struct {
    double start, end;
} Span;

/* Adds a span to a list that ascends and holds none that touch; it begins no earlier than the last one. */
static inline size_t add_span(Span *list, size_t count, double start, double end) {
    if (count && !(start > list[count - 1].end)) {
        if (end > list[count - 1].end) list[count - 1].end = end;
        return count;
    }
    list[count] = (Span){start, end};
    return count + 1;
}

/* Ascending by start, equal ones in their order. Most lists are a few ascending runs one after the other, so runs are merged, two
   by two. The result is in *list* or in *other*. */
static Span *ascending(Span *list, Span *other, size_t count) {
    for (;;) {
        size_t runs = 0, out = 0;
        for (size_t a = 0; a < count; runs++) {
            size_t b = a + 1;
            while (b < count && !(list[b].start < list[b - 1].start)) b++;
            size_t c = b < count ? b + 1 : b;
            while (c < count && !(list[c].start < list[c - 1].start)) c++;
            if (!runs && c == count && b == count) return list;
            size_t i = a, j = b;
            while (i < b && j < c) other[out++] = list[j].start < list[i].start ? list[j++] : list[i++];
            while (i < b) other[out++] = list[i++];
            while (j < c) other[out++] = list[j++];
            a = c;
        }
        Span *done = other;
        other = list;
        list = done;
        if (runs <= 1) return list;
    }
}

static PyObject *spans_as_columns(const Span *list, size_t count) {
    PyObject *starts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    PyObject *result = NULL;
    if (starts && ends) {
        char *start = PyBytes_AsString(starts), *end = PyBytes_AsString(ends);
        for (size_t i = 0; i < count; i++) {
            memcpy(start + 8 * i, &list[i].start, 8);
            memcpy(end + 8 * i, &list[i].end, 8);
        }
        result = Py_BuildValue("OO", starts, ends);
    }
    Py_XDECREF(starts);
    Py_XDECREF(ends);
    return result;
}

PyDoc_STRVAR(united_doc,
"united(start, end)\n--\n\n"
"What intervals.py computes of intervals of any order, float64 as bytes: the starts and ends of the set that they cover together.");

static PyObject *columns_united(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given[2];
    char *column[2];
    Py_ssize_t size[2];
    if (!PyArg_ParseTuple(args, "OO:united", &given[0], &given[1])) return NULL;
    for (int i = 0; i < 2; i++)
        if (PyBytes_AsStringAndSize(given[i], &column[i], &size[i]) < 0) return NULL;
    if (size[0] != size[1] || size[0] % 8) {
        PyErr_SetString(PyExc_ValueError, "intervals must have as many starts and ends");
        return NULL;
    }
    size_t count = 0;
    Span *list = malloc((size_t)size[0] * 4 + 1);
    if (!list) return PyErr_NoMemory();
    Span *other = list + size[0] / 8;
    for (Py_ssize_t i = 0; i < size[0] / 8; i++) {
        double start = number_at(column[0], i), end = number_at(column[1], i);
        if (end > start) list[count++] = (Span){start, end};
    }
    Span *sorted = count ? ascending(list, other, count) : list;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) kept = add_span(sorted, kept, sorted[i].start, sorted[i].end);
    PyObject *result = spans_as_columns(sorted, kept);
    free(list);
    return result;
}

PyDoc_STRVAR(common_doc,
"common(start, end, other_start, other_end)\n--\n\n"
"What intervals.py computes of two sets of disjoint intervals, ascending, float64 as bytes: starts and ends of what lies in both.");

static PyObject *columns_common(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given[4];
    char *column[4];
    Py_ssize_t size[4];
    if (!PyArg_ParseTuple(args, "OOOO:common", &given[0], &given[1], &given[2], &given[3])) return NULL;
    for (int i = 0; i < 4; i++)
        if (PyBytes_AsStringAndSize(given[i], &column[i], &size[i]) < 0) return NULL;
    if (size[0] != size[1] || size[2] != size[3] || size[0] % 8 || size[2] % 8) {
        PyErr_SetString(PyExc_ValueError, "intervals must have as many starts and ends");
        return NULL;
    }
    /* At each step one interval is done with, so that there are at most as many pieces as intervals. */
    Span *list = malloc((size_t)(size[0] + size[2]) * 2 + 1);
    if (!list) return PyErr_NoMemory();
    Py_ssize_t i = 0, j = 0, mine = size[0] / 8, theirs = size[2] / 8;
    size_t kept = 0;
    while (i < mine && j < theirs) {
        double start = number_at(column[0], i), end = number_at(column[1], i);
        double other_start = number_at(column[2], j), other_end = number_at(column[3], j);
        double low = start < other_start ? other_start : start, high = other_end < end ? other_end : end;
        if (high > low) kept = add_span(list, kept, low, high);
        if (end < other_end) i++;
        else j++;
    }
    PyObject *result = spans_as_columns(list, kept);
    free(list);
    return result;
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(count_doc, "count(data, byte)\n--\n\nHow often a byte, given as a number, stands in *data*.");

static PyObject *columns_count(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *data;
    int byte;
    char *text;
    Py_ssize_t size, found = 0;
    if (!PyArg_ParseTuple(args, "Oi:count", &data, &byte) || PyBytes_AsStringAndSize(data, &text, &size) < 0) return NULL;
    const unsigned char wanted = (unsigned char)byte;
    /* Counted in bytes for as long as they last: sixteen at once. */
    for (Py_ssize_t from = 0; from < size; from += 240) {
        Py_ssize_t until = size - from < 240 ? size : from + 240;
        unsigned char some = 0;
        for (Py_ssize_t i = from; i < until; i++) some += (unsigned char)text[i] == wanted;
        found += some;
    }
    return PyLong_FromSsize_t(found);
}

static PyMethodDef columns_methods[] = {
    {"common", columns_common, METH_VARARGS, common_doc},
    {"count", columns_count, METH_VARARGS, count_doc},
    {"covered", columns_covered, METH_VARARGS, covered_doc},
    {"nest", columns_nest, METH_VARARGS, nest_doc},
    {"united", columns_united, METH_VARARGS, united_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot columns_slots[] = {{0, NULL}};

static struct PyModuleDef columns_module = {
    PyModuleDef_HEAD_INIT, "_columns", "Compiled computations on columns.", 0, columns_methods, columns_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__columns(void) { return PyModuleDef_Init(&columns_module); }
