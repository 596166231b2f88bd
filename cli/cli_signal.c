/* cli_signal.c - SIGINT (Ctrl-C), SIGTERM and SIGHUP: the run ends after the current pass, and tells what there is. A file that grows
 * beyond a limit is an error of writing, and no signal (SIGXFSZ), so that nothing is left of it. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static volatile sig_atomic_t signal_number; /* 0: none came */
static spec_session *volatile session_to_cancel;

static void on_signal(int number)
{
    signal_number = number;
    if (session_to_cancel != NULL) spec_session_cancel(session_to_cancel);
}

void cli_interrupt_install(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = (int)SA_RESETHAND; /* the second one kills */
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
}

bool cli_interrupted(void)
{
    return signal_number != 0;
}

int cli_interrupt_code(int code)
{
    return signal_number != 0 ? 128 + signal_number : code;
}

void cli_interrupt_session(spec_session *session)
{
    session_to_cancel = session;
    if (session != NULL && cli_interrupted()) spec_session_cancel(session);
}
