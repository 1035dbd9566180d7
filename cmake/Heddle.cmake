# heddle_library(name SOURCES … DEPS … TESTS … [LABEL unit]): a static library heddle_<name> from the
# files named, and one test binary heddle_<name>_test from TESTS, registered with ctest.
function(heddle_library name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  add_library(heddle_${name} STATIC ${ARG_SOURCES})
  target_include_directories(heddle_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(heddle_${name} PUBLIC heddle_flags ${ARG_DEPS})
  if(ARG_TESTS AND HEDDLE_BUILD_TESTS)
    heddle_test(heddle_${name}_test SOURCES ${ARG_TESTS} DEPS heddle_${name} ${ARG_TEST_DEPS}
                LABEL ${ARG_LABEL})
  endif()
endfunction()

# heddle_test(target SOURCES … DEPS … [LABEL unit]): a GoogleTest binary, one ctest entry.
function(heddle_test target)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} heddle_flags GTest::gtest GTest::gtest_main)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${target} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${target} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 1200)
endfunction()
