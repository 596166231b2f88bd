# Does spec-bench say what its reports promise? Runs it over small models; parses every line; no conclusions from times.
#   cmake -D BENCH=... -D TARGET=DIR -D DRAFTER=DIR -D WORK=DIR -D TOKENIZER=ON|OFF -P check.cmake
cmake_minimum_required(VERSION 3.21)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/tmp)
set(ENV{TMPDIR} ${WORK}/tmp)
set(common model backend dtype nodes tree median_ms min_ms floor_ms bandwidth_gbs bandwidth valid commit)
set(given --bandwidth 10) # measuring it takes seconds

# check(<lines> <fields> <arguments...>): the run succeeds, with so many lines, each an object with these fields.
function(check n_line fields)
  execute_process(COMMAND ${BENCH} ${ARGN} -t 2 ${given} -r 2 --json RESULT_VARIABLE code OUTPUT_VARIABLE text)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "spec-bench ${ARGN}: ended with ${code}")
  endif()
  file(WRITE ${WORK}/report.json "${text}")
  file(STRINGS ${WORK}/report.json lines)
  list(LENGTH lines n)
  if(NOT n EQUAL n_line)
    message(FATAL_ERROR "spec-bench ${ARGN}: ${n} lines, expected ${n_line}:\n${text}")
  endif()
  foreach(line IN LISTS lines)
    foreach(field IN LISTS fields)
      string(JSON value ERROR_VARIABLE error GET "${line}" ${field})
      if(error OR value STREQUAL "")
        message(FATAL_ERROR "spec-bench ${ARGN}: \"${field}\": ${error}:\n${line}")
      endif()
    endforeach()
  endforeach()
endfunction()

# positive(<field>): in every line of the latest report.
function(positive field)
  file(STRINGS ${WORK}/report.json lines)
  foreach(line IN LISTS lines)
    string(JSON value GET "${line}" ${field})
    if(NOT value GREATER 0)
      message(FATAL_ERROR "\"${field}\" is ${value}, expected more than 0:\n${line}")
    endif()
  endforeach()
endfunction()

set(timed ${common} mode threads)
check(2 "${timed};rows;scan;advance;plain_ms;queued_ms;over_plain;syncs_per_step" step -m ${TARGET} --nodes 1,4)
positive(median_ms)
positive(floor_ms)
foreach(shape mamba2-tiny mamba-tiny llama-tiny mambainllama-tiny) # one of each family: what is written can be read
  check(3 "${timed}" step -m ${shape} --nodes 7 --tree chain,random,unrolled -c 16)
  positive(median_ms)
endforeach()

check(1 "${timed}" step -m mamba2-tiny -c 16 --tree static:A --nodes 1,4) # it has its own size
file(STRINGS ${WORK}/report.json lines)
if(NOT lines MATCHES "\"nodes\":13,")
  message(FATAL_ERROR "expected a tree of 13 nodes:\n${lines}")
endif()

check(3 "${timed}" step -m mambainllama-tiny --nodes 7 --tree chain,random,unrolled -c 16)
file(RENAME ${WORK}/report.json ${WORK}/old.json)
check(3 "${timed};compare" step -m mambainllama-tiny --nodes 7 --tree chain,random,unrolled -c 16
  --compare ${WORK}/old.json)

file(WRITE ${WORK}/story.jsonl "{\"prompt\": \"Once upon a time\"}\n{\"prompt\": \"There was a\"}\n")
set(generate emitted_per_step tokens_per_s over_plain speculated_share branched_share host_work_ms host_work_share
  syncs_per_step allocs_per_step read_bytes_per_step task verify temperature)
foreach(tree chain:2 beam:2,2)
  check(4 "${timed};${generate}" generate -m ${TARGET} -d ${DRAFTER} --prompts ${WORK}/story.jsonl -n 8
    --tree ${tree} --temp 0,1)
  positive(emitted_per_step)
  positive(syncs_per_step)
  positive(host_work_ms)
endforeach()

set(prompts ${CMAKE_CURRENT_LIST_DIR}/tasks)
check(4 "${timed};${generate};drafter;adapt" generate -m ${TARGET} -d ${DRAFTER} --prompts ${WORK}/story.jsonl -n 8
  --tree chain:2 --draft "ngram\;trie:7,4,1\;ngram+model" --chat "{} again")
check(2 "${timed};${generate}" generate -m ${TARGET} -d ${DRAFTER} --prompts ${prompts}/prose.jsonl -n 8
  --n-prompt 2 --tree chain:2 --draft "ngram+model" --draft-combine choose --adapt cost --cost-profile ${prompts}/costs_7b.json)

set(untimed ${common})
list(REMOVE_ITEM untimed median_ms min_ms)
check(1 "${untimed};extra_percent;taken_over_predicted" memory -m ${TARGET} --nodes 16)
positive(extra_percent)
foreach(tree product:2,2 dyspec:64)
  check(1 "${timed};level_ms;drafted" draft -m mamba2-tiny -c 16 --tree ${tree})
  positive(drafted)
endforeach()
foreach(head eagle2-llama-tiny lyanna-llama-tiny)
  check(1 "${untimed};drafter;level_ms;drafted" draft -m llama-tiny -d ${head} -c 16 --tree product:3,2,2,1,1)
  positive(drafted)
  positive(floor_ms)
endforeach()
check(1 "${untimed};token_info" draft -m llama-tiny -d lyanna-llama-tiny -c 16 --tree product:2,2 --draft-token-info collapsed)
check(2 "${timed};${generate};sequences" generate -m llama-tiny -d lyanna-llama-tiny --n-prompt 3 -n 8 --sequences 2
  --ignore-eos --tree chain:3 --draft-resample 2 --draft-resample-across)
execute_process(COMMAND ${CMAKE_COMMAND} -E env SMALL=1 "OPTIONS=-t 2 --bandwidth 10 -r 2 -c 16" bash ${CMAKE_CURRENT_LIST_DIR}/draft_time.sh
  ${BENCH} cpu ${TARGET} ${DRAFTER} RESULT_VARIABLE code OUTPUT_VARIABLE text)
string(REGEX MATCHALL "\"floor_ms\"" found "${text}")
list(LENGTH found n)
if(NOT code EQUAL 0 OR NOT n EQUAL 5)
  message(FATAL_ERROR "draft_time.sh: ended with ${code}, ${n} lines of 5:\n${text}")
endif()
check(1 "${timed};weights" step -m mamba2-tiny --weights q8_0 --nodes 2 -c 16)
check(1 "${timed};tokens_per_s;matrix_share" prefill -m mamba2-tiny --tokens 32)
check(4 "${timed};path;cost_ms;base_ms" replay -m mamba2-tiny -c 16 --tokens 1,3)
check(2 "${timed};sequences;steps_per_s" sequences -m mamba2-tiny -c 16 --sequences 1,3 --nodes 2)
check(9 "${timed};what;queued_ms" rows --nodes 2)
list(REMOVE_ITEM untimed nodes)
check(2 "${untimed};task;verify;steps;accepted_per_step;expected_per_step;more;error" rules -m ${TARGET} -d ${DRAFTER} --prompts ${WORK}/story.jsonl
  -n 8 --tree product:2,2)
positive(expected_per_step)
list(REMOVE_ITEM untimed tree)
check(2 "${untimed};what;tokens;prompt_ms;bytes_per_token;step_us;slow_us;worst_us;drafted;lookup_us;fork_us;copy_us" text
  --tokens 300,2000 --tree trie:4,3,1)
positive(drafted)
check(4 "${timed};what;queued_ms;blocks;pairs;over_dense" attention --nodes 100 -c 70)
positive(over_dense)
if(TOKENIZER) # its texts are given as text
  check(1 "mode;what;context;open_ms;first_us;proposal_us;slow_us;worst_us;steps;drafted;emitted;commit" png -m ${TARGET} --tree ngram
    --prompts ${CMAKE_CURRENT_LIST_FILE})
  positive(emitted)
endif()
check(6 "${timed}" machine step prefill -m mamba2-tiny -c 16 --nodes 1,2 --tokens 32) # several modes in one run
set(given)
check(3 "${timed};what" machine)
positive(bandwidth_gbs)

file(GLOB left ${WORK}/tmp/*)
if(left)
  message(FATAL_ERROR "models were left behind: ${left}")
endif()
execute_process(COMMAND ${BENCH} no-such-mode -m ${TARGET} RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
if(NOT code EQUAL 2 OR NOT text MATCHES "\"no-such-mode\" is not a mode")
  message(FATAL_ERROR "a mode that is none: ended with ${code}: ${text}")
endif()
execute_process(COMMAND ${BENCH} step -m no-such-shape RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
if(code EQUAL 0 OR NOT text MATCHES "no-such-shape")
  message(FATAL_ERROR "a model that is none: ended with ${code}: ${text}")
endif()
