#!/usr/bin/env python3
"""Makes the vectors of learning.json with scikit-learn (made with 1.9.1, numpy 2): run it here, without arguments.

k-means        KMeans(init=given centres, n_init=1, algorithm="lloyd"): labels, centres, inertia
logistic       LogisticRegression without penalty on standardised features: weights, intercept, mean loss
naive Bayes    MultinomialNB over counts of hashed words and pairs of words: joint log likelihood, predictions
murmur         sklearn.utils.murmurhash3_32, seed 0 and others, unsigned
"""

import json

import numpy as np
import sklearn
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, log_loss, precision_score, roc_auc_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.utils import murmurhash3_32
from scipy.sparse import csr_matrix

rng = np.random.default_rng(20240607)


def clusters(rows, columns, k, max_iter, tol, spread):
    middles = rng.uniform(-10, 10, size=(k, columns))
    points = np.round(middles[rng.integers(0, k, rows)] + rng.normal(0, spread, size=(rows, columns)), 3)
    start = points[rng.choice(rows, k, replace=False)]
    model = KMeans(n_clusters=k, init=start, n_init=1, max_iter=max_iter, tol=tol, algorithm="lloyd").fit(points)
    assert len(set(model.labels_)) == k, "scikit-learn moves empty clusters; ours stay"
    return {
        "rows": rows, "columns": columns, "values": points.ravel().tolist(), "start": start.ravel().tolist(), "k": k,
        "max_iterations": max_iter, "tolerance": tol, "labels": model.labels_.tolist(),
        "centers": model.cluster_centers_.ravel().tolist(), "inertia": model.inertia_, "iterations": int(model.n_iter_),
    }


def regression(rows, columns, noise):
    features = np.round(rng.normal(3, 2, size=(rows, columns)), 3)
    features[:, 0] = np.round(features[:, 0] * 1000 + 50_000, 0)
    weights = rng.normal(0, 1, columns)
    z = ((features - features.mean(0)) / features.std(0)) @ weights + 0.4 + rng.logistic(0, noise, rows)
    labels = (z > 0).astype(int)
    standard = (features - features.mean(0)) / features.std(0, ddof=1)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(standard, labels)
    predicted = model.predict(standard)
    (tn, fp), (fn, tp) = confusion_matrix(labels, predicted)
    return {
        "rows": rows, "columns": columns, "values": features.ravel().tolist(), "labels": labels.tolist(),
        "weights": model.coef_[0].tolist(), "intercept": float(model.intercept_[0]),
        "loss": float(log_loss(labels, model.predict_proba(standard))),
        "confusion": [int(tn), int(fp), int(fn), int(tp)],
        "precision": float(precision_score(labels, predicted)), "auc": float(roc_auc_score(labels, predicted)),
    }


def grams(text):
    words = [word for word in text.lower().split(" ") if word]
    return words + [f"{a} {b}" for a, b in zip(words, words[1:])]


def counts(texts, buckets):
    row, column = [], []
    for index, text in enumerate(texts):
        for gram in grams(text):
            row.append(index)
            column.append(murmurhash3_32(gram, seed=0, positive=True) % buckets)
    return csr_matrix((np.ones(len(row)), (row, column)), shape=(len(texts), buckets))


def bayes(train, test, buckets, alpha):
    words = "good bad fine poor The shoe, box! value-for money très über never again it is".split(" ")
    lean = {0: [1, 3, 10, 11], 1: [2, 4, 12], 2: [0, 2, 7, 8]}

    def text(label):
        picks = [words[rng.choice(lean[label])] if rng.random() < 0.3 else words[rng.integers(len(words))] for _ in range(rng.integers(1, 12))]
        return ("  " if rng.random() < 0.2 else " ").join(picks)

    labels = rng.choice(3, train, p=[0.2, 0.1, 0.7])
    texts = [text(label) for label in labels]
    truth = rng.choice(3, test)
    tests = [text(label) for label in truth] + ["", "   ", "words that nobody knows"]
    model = MultinomialNB(alpha=alpha).fit(counts(texts, buckets), labels)
    likelihoods = model.predict_joint_log_proba(counts(tests, buckets))
    return {
        "buckets": buckets, "alpha": alpha, "texts": texts, "labels": labels.tolist(), "tests": tests,
        "scores": likelihoods.tolist(), "predictions": model.predict(counts(tests, buckets)).tolist(),
    }


words = ["", "a", "ab", "abc", "abcd", "abcde", "good shoes", "très bien", "日本語", "x" * 100]
seeds = [0, 1, 37, 2**32 - 1]
vectors = {
    "made_with": f"scikit-learn {sklearn.__version__}",
    "kmeans": [clusters(120, 3, 4, 20, 1e-4, 3.0), clusters(60, 1, 3, 100, 0.0, 4.0), clusters(200, 2, 8, 2, 1e-4, 6.0)],
    "logistic": [regression(150, 3, 0.8), regression(80, 1, 1.5)],
    "bayes": [bayes(60, 20, 1 << 20, 0.001), bayes(60, 20, 97, 0.5)],
    "murmur": [[word, seed, int(murmurhash3_32(word, seed=seed, positive=True))] for word in words for seed in seeds],
}
with open("learning.json", "w", encoding="utf-8") as file:
    json.dump(vectors, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
