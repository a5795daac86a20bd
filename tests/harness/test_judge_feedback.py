"""What the judge says of wrong candidates, from their answers in its own buffers."""

from __future__ import annotations

from dataclasses import replace

from gristmill.domain import Domain, Layout
from kernels import catalogue
from kernels.inputs import workload
from kernels.verdict import Status

LINEAR = """#include "gristmill_kernel.h"
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &w = call->inputs[1];
    float *out = (float *)call->outputs[0].data;
    const int64_t tokens = x.shape[0], inner = x.shape[1], outer = w.shape[0];
#pragma omp parallel for
    for (int64_t n = 0; n < outer; n++) {
        for (int64_t t = 0; t < tokens; t++) {
            const float *a = (const float *)x.data + t * x.stride[0];
            const float *b = (const float *)w.data + n * w.stride[0];
            float sum = 0;
            for (int64_t k = 0; k < inner; k++) sum += a[k] * b[k];
            out[t * outer + n] = sum;
        }
    }
    DAMAGE
    return 0;
}
"""


def test_one_wrong_element_over_large_weights_is_found_every_time(judge, cpp):
    made = workload(catalogue.operator("skinny_linear"), "float32", tokens=1, in_features=768, out_features=8192)
    damage = "if (outer > 7999) out[7777] = -out[7777];"
    for number in range(2):
        source = LINEAR.replace("DAMAGE", f"{damage} // {number}")
        verdict = judge.judge(cpp("skinny_linear", source, flags=("-ffast-math",)), [made])
        assert verdict.status is Status.INCORRECT, verdict.reason
        assert verdict.mismatches[0].worst_index == (0, 7777)
    right = judge.judge(cpp("skinny_linear", LINEAR.replace("DAMAGE", ""), flags=("-ffast-math",)), [made])
    assert right.status in (Status.SLOWER, Status.FASTER), right.reason


def test_the_smallest_failing_calls_come_with_the_mistake(judge, cpp, source, rms_norm_workloads):
    text = source("rms_norm").replace("t*x.stride[0]", "t*H")
    assert text != source("rms_norm")
    claims_rows = Domain("rms_norm", "float32", (), Layout.INNER_CONTIGUOUS)
    verdict = judge.judge(replace(cpp("rms_norm", text), domain=claims_rows), rms_norm_workloads)
    assert verdict.status is Status.INCORRECT and "strides" in verdict.reason and "ignored" in verdict.reason
    sizes = [case.axes["tokens"] * case.axes["hidden"] for case in verdict.failing]
    assert len(sizes) == 3 and sizes == sorted(sizes)
    assert all(case.layouts and "strides" in case.diagnosis for case in verdict.failing)
    assert sum(one.elements for one in verdict.mismatches[0].histogram) == verdict.mismatches[0].total_elements


def test_a_mistake_that_the_smallest_call_does_not_show_is_named_from_the_next(judge, cpp, source, rms_norm_workloads):
    kernel = source("rms_norm")
    text = kernel.replace("return 0;", "((float *)o.data)[0] *= 1.01f; return 0;")
    assert text != kernel
    verdict = judge.judge(cpp("rms_norm", text), rms_norm_workloads)
    assert verdict.status is Status.INCORRECT
    assert verdict.failing[0].axes["hidden"] == 1 and verdict.failing[0].inputs
    assert "\n" not in verdict.reason
