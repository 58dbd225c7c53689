/** What the threads share. SIGNAL: the signal that has arrived. WORK: 0, nothing is unfinished; 1, a signal has to be cleaned up after; 2, the
 *  process is being ended. ANSWER: of the main thread, 1 yes, 2 no. */
export const STATE = { SIGNAL: 0, WORK: 1, ANSWER: 2, SIZE: 12 };
