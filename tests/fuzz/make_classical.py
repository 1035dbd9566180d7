"""Makers of ai.onnx.ml's operators. Inputs are multiples of 1/4 and thresholds lie between them."""

import numpy as np

POST = ("NONE", "SOFTMAX", "LOGISTIC")


def rows(g, width=None):
    return g.fresh([g.int(1, 5), width or g.int(1, 4)])


def floats(g, count, low=-1, high=1):
    return [float(v) for v in g.numbers([count], low=low, high=high)]


def extract(g, op):
    x = rows(g)
    g.add(op, [x, g.constant(g.random.integers(0, g.shape(x)[1], g.int(1, 3)))], exact=True)


def binarize(g, op):
    g.add(op, [rows(g)], exact=True, threshold=g.choose(0.0, 0.125, -0.5))


def vectorize(g, op):
    n, widths = g.int(1, 3), [g.int(1, 3), g.int(1, 3)]
    g.add(op, [g.fresh([n, w]) for w in widths], exact=True, inputdimensions=widths)


def impute(g, op):
    x = g.numbers([g.int(1, 4), 3])
    x[g.random.random(x.shape) < 0.4] = np.nan
    g.add(op, [g.input(x)], exact=True, imputed_value_floats=floats(g, g.choose(1, 3)),
          replaced_value_float=float("nan"))


def label(g, op):
    if g.chance(0.5):
        x = g.fresh(g.shape_of(), np.int64, 0, 4)
        g.add(op, [x], exact=True, keys_int64s=[0, 1, 3], values_floats=[0.5, 1.5, 2.0],
              default_float=-1.0)
    else:
        x = g.input(g.random.choice(np.array(["a", "b", "c"], object), g.shape_of()))
        g.add(op, [x], exact=True, keys_strings=["a", "b"], values_int64s=[3, 4],
              default_int64=-1)


def linear_classifier(g, op):
    x = rows(g)
    classes = g.int(2, 4)
    g.add(op, [x], 2, coefficients=floats(g, classes * g.shape(x)[1]),
          intercepts=[0.01 * (i + 1) for i in range(classes)], classlabels_ints=list(range(classes)),
          multi_class=0, post_transform=g.choose(*POST))


def linear_regressor(g, op):
    x = rows(g)
    targets = g.int(1, 3)
    g.add(op, [x], coefficients=floats(g, targets * g.shape(x)[1]), targets=targets,
          intercepts=floats(g, targets), post_transform="NONE")


def normalizer(g, op):
    x = g.fresh([g.int(1, 4), g.int(1, 4)], low=0.25, high=2)
    g.add(op, [x], norm=g.choose("MAX", "L1", "L2"))


def one_hot(g, op):
    x = g.fresh(g.shape_of(g.int(1, 2)), np.int64, 0, 4)
    g.add(op, [x], exact=True, cats_int64s=[0, 1, 3], zeros=1)


def scaler(g, op):
    x = rows(g)
    count = g.choose(1, g.shape(x)[1])
    g.add(op, [x], offset=floats(g, count), scale=floats(g, count))


def svm_regressor(g, op):
    x = rows(g)
    vectors = g.int(1, 4)
    g.add(op, [x], coefficients=floats(g, vectors), kernel_type=g.choose("RBF", "LINEAR", "POLY"),
          kernel_params=[0.25, 0.5, 2.0], n_supports=vectors, rho=[0.25],
          support_vectors=floats(g, vectors * g.shape(x)[1]), post_transform="NONE")


def tree(g, width, leaves):
    """A node of depth two with three thresholds: modes, features, values and children."""
    return {
        "nodes_treeids": [0] * 7, "nodes_nodeids": list(range(7)),
        "nodes_featureids": [g.int(0, width - 1) for _ in range(3)] + [0] * 4,
        "nodes_values": [g.choose(-0.6, 0.1, 0.6) for _ in range(3)] + [0.0] * 4,
        "nodes_modes": [g.choose("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE")] * 3
                       + ["LEAF"] * 4,
        "nodes_truenodeids": [1, 3, 5, 0, 0, 0, 0], "nodes_falsenodeids": [2, 4, 6, 0, 0, 0, 0],
        "nodes_missing_value_tracks_true": [0] * 7, "nodes_hitrates": [1.0] * 7,
        f"{leaves}_treeids": [0] * 4, f"{leaves}_nodeids": [3, 4, 5, 6]}


def tree_regressor(g, op):
    x = rows(g)
    g.add(op, [x], **tree(g, g.shape(x)[1], "target"), target_ids=[0] * 4,
          target_weights=floats(g, 4), n_targets=1, aggregate_function=g.choose("SUM", "MAX"),
          post_transform="NONE")


def tree_classifier(g, op):
    x = rows(g)
    g.add(op, [x], 2, **tree(g, g.shape(x)[1], "class"), class_ids=[0, 1, 2, 1],
          class_weights=[0.25, 0.5, 0.75, 1.0], classlabels_int64s=[0, 1, 2],
          post_transform=g.choose("NONE", "SOFTMAX"))


MAKERS = {f"ai.onnx.ml::{name}": maker for name, maker in {
    "ArrayFeatureExtractor": extract, "Binarizer": binarize, "FeatureVectorizer": vectorize,
    "Imputer": impute, "LabelEncoder": label, "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor, "Normalizer": normalizer, "OneHotEncoder": one_hot,
    "Scaler": scaler, "SVMRegressor": svm_regressor, "TreeEnsembleRegressor": tree_regressor,
    "TreeEnsembleClassifier": tree_classifier}.items()}
