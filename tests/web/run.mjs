/** Each file is a family of tests for one served page. --only NAME: run this family. --slow N: make the page's processor N
 *  times slower. */
import { launch, serve } from "./browser.mjs";
import { report } from "./harness.mjs";
import { testPure } from "./pure.mjs";
import { testSarif } from "./sarif.mjs";
import { testSamples } from "./samples.mjs";
import { testCommands } from "./commands.mjs";
import { testComparing } from "./comparing.mjs";
import { testDamaged } from "./damaged.mjs";
import { testViews } from "./views.mjs";
import { testFetching } from "./fetching.mjs";
import { testFields } from "./fields.mjs";
import { testFirefox } from "./firefox.mjs";
import { testFrameworks } from "./frameworks.mjs";
import { testHabits } from "./habits.mjs";
import { testKeyboard } from "./keyboard.mjs";
import { testMaps } from "./maps.mjs";
import { testOffline } from "./offline.mjs";
import { testLoading } from "./loading.mjs";
import { testOpening } from "./opening.mjs";
import { testOptimizer } from "./optimizer.mjs";
import { testPackage } from "./package.mjs";
import { testProduct } from "./product.mjs";
import { testRaces } from "./races.mjs";
import { testReading } from "./reading.mjs";
import { testRemote } from "./remote.mjs";
import { testScale } from "./scale.mjs";
import { testSharing } from "./sharing.mjs";
import { testStatements } from "./statements.mjs";
import { testStaying } from "./staying.mjs";
import { testSuspended } from "./suspended.mjs";
import { testTruth } from "./truth.mjs";
import { testWaiting } from "./waiting.mjs";
import { testWriting } from "./writing.mjs";

const option = (name) => process.argv[process.argv.indexOf(name) + 1 || process.argv.length];
const families = { testViews, testTruth, testStatements, testWriting, testDamaged, testCommands, testFields, testComparing, testFetching, testMaps, testLoading, testOptimizer, testOpening, testFrameworks, testHabits, testKeyboard, testRemote, testRaces, testReading, testWaiting, testSuspended, testSharing, testStaying, testOffline, testPackage, testProduct, testSamples, testScale };
const server = await serve();
const browser = await launch({ viewport: { width: 1280, height: 800 }, acceptDownloads: true });
try {
  if (!option("--only")) {
    await testPure();
    await testSarif();
  }
  for (const [name, family] of Object.entries(families)) {
    if (option("--only") && name.toLowerCase() !== `test${option("--only")}`) continue;
    const page = await browser.context.newPage();
    if (option("--slow")) await (await browser.context.newCDPSession(page)).send("Emulation.setCPUThrottlingRate", { rate: Number(option("--slow")) });
    const broken = [];
    page.on("pageerror", (e) => broken.push(e.message));
    await family({ page, url: server.url, context: browser.context, broken });
    await page.close();
  }
  if (!option("--only") || option("--only") === "firefox") await testFirefox();
} finally {
  await browser.close();
  server.stop();
}
report();
