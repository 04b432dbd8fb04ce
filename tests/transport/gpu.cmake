# The GPU side, on the stand-ins of tests/doubles.
foreach(m memory_cuda transfer_nccl)
  weft_test(transport ${m})
  weft_uses_doubles(transport_${m})
endforeach()
set_tests_properties(transport.transfer_nccl PROPERTIES TIMEOUT 90)
