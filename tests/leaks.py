"""The search for what must stay at a client, in what left it: pieces of private arrays, planted
numbers and names.
"""

from dataclasses import replace

import numpy as np

from plfl.federate.params import to_named
from plfl.storage import read_arrays

CHUNK, LEAST_DISTINCT = 16, 8
CANARY = 31_415.926
"""A load, an area and more that no client has by chance."""
CANARY_NAME = "ada-canary"
"""Part of the names of files, folders and meters."""


def find_chunks(haystack, arrays):
    """Names of the arrays of which some 16 bytes are in the haystack, and how many chunks were
    searched for.

    A chunk is any 16 bytes of an array in float32 or float64, at any offset, that are no pattern
    such as zeros. All windows of 16 bytes of the haystack are put in a set, so that one look-up
    serves each chunk.
    """
    windows = {haystack[k : k + CHUNK] for k in range(len(haystack) - CHUNK + 1)}
    hits, count = set(), 0
    for name, array in arrays.items():
        for dtype in ("<f4", "<f8"):
            content = np.ascontiguousarray(array, dtype).tobytes()
            chunks = [content[at : at + CHUNK] for at in range(len(content) - CHUNK + 1)]
            count += len(chunks)
            if any(chunk in windows and len(set(chunk)) >= LEAST_DISTINCT for chunk in chunks):
                hits.add(name)
    return hits, count


def canary_bytes():
    """What was planted as it could be sent: in both precisions and orders, and as text."""
    kinds = ("<f4", "<f8", ">f4", ">f8")
    return [np.array(CANARY, kind).tobytes() for kind in kinds] + [
        b"31415.9",
        CANARY_NAME.encode(),
        b"31_415",
    ]


def plant(panel):
    """The panel, with the canary among its loads, which are of that size so that it is no glitch,
    and in its areas.
    """
    load = panel.load * (np.float32(CANARY) / panel.load[:, 100:101])
    load[:, 100] = CANARY  # in the training part
    statics = panel.statics.copy()
    statics[:, 0] = CANARY
    return replace(panel, load=load, statics=statics)


def private_arrays(node):
    """All that must stay at home: personal params and moments of every round on the disk, series,
    areas and scalers.
    """
    task, found = node.agreed.task, {}
    for path in sorted(node.agreed.kept_folder.glob("*.safetensors")):
        arrays, facts = read_arrays(path)
        own = {
            name: array for name, array in arrays.items() if name.startswith(("before/", "after/"))
        }
        found |= {f"round {facts['round']}: {name}": array for name, array in own.items()}
    found |= {
        f"newcomer: {name}": value for name, value in to_named(node.agreed.newcomer()).items()
    }
    found |= {
        "load": task.panel.load,
        "series": task.series,
        "statics": task.panel.statics,
        "areas": task.statics,
    }
    found |= task.scalers[0].as_arrays()
    scaler = task.scalers[0]
    found["scaler"] = np.array(
        [scaler.load_mean, scaler.load_sd, *scaler.covariate_mean, *scaler.covariate_sd]
    )
    return found
