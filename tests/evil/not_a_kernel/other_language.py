# trick: is C++ in the string of a Python file
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

run = """
GM_EXPORT int32_t gm_run(const gm_call *call) { return 0; }
"""
