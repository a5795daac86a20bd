// trick: is empty but for its header
// family: not_a_kernel
// operator: rms_norm
// status: rejected

